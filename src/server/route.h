// What a route is: a method, a path, and the function that answers. Each API lists its routes in
// api/NAME/routes.cc. router.h finds the route of a request, route_runner.h runs it.
//
// Thread safety: contexts are values; each request has its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/api/errors.h"
#include "server/api/responses/store.h"
#include "server/api_keys.h"
#include "server/http/http_server.h"
#include "server/models/model_host.h"
#include "server/request/volatile_lines.h"
#include "server/request_log.h"
#include "server/tier_sampler.h"

namespace kvcache::server {

using Reply = std::shared_ptr<HttpReply>;

// What a route is told of its request, and how it answers.
struct ServerContext {
  ModelHost& host;
  ResponseStore& responses;
  const TierSampler& tiers;
  const RequestLog& requests;
  Api api{};
  std::string path{};
  std::string parameter{};  // what the path has for {…} of the route's
  std::string query{};      // of the request's address
  User user{};              // who asks; without keys, everyone is the same administrator
  std::shared_ptr<RequestEntry> entry{};  // the request in the log; null: it is not logged, as GET
  Reply reply{};

  // Answers with JSON.
  void Send(const Json& json) const { reply->Send(200, Dump(json)); }
  // Answers with an error in the API's shape. `param`: the field of the request that it is about.
  void Refuse(const ApiError& error) const { SendError(*reply, api, error); }
  void Refuse(const Status& status, const char* param = "") const;
  void Refuse(const Fields& fields) const { Refuse(FromFields(fields)); }
  // The same for the error of a search for the model that the request names.
  void RefuseModel(const Status& status) const;
};

// With the model that the request asks for. A function that outlives the route must hold the lease.
struct RouteContext : ServerContext {
  RouteContext(const ServerContext& server, ServedModel asked, ModelLease loaded)
      : ServerContext(server), model(std::move(asked)), lease(std::move(loaded)), service(*lease) {}

  ServedModel model;
  ModelLease lease;
  TextService& service;
  VolatileCounts volatile_lines{};     // that were taken out of the request
  std::vector<AdapterUse> adapters{};  // of the request
  std::vector<PicturePtr> pictures{};  // whose marks are in the request

  // Returns the salt of the request's texts.
  std::uint64_t salt() const { return service.engine().SaltOf(user.salt, adapters); }
};

// The same with a model that embeds or ranks.
struct EmbeddingContext : ServerContext {
  EmbeddingContext(const ServerContext& server, ServedModel asked, EmbeddingLease loaded)
      : ServerContext(server), model(std::move(asked)), lease(std::move(loaded)), service(*lease) {}

  ServedModel model;
  EmbeddingLease lease;
  EmbeddingService& service;
  double load_ms = 0.0;                // that the request waited for its model
  std::vector<AdapterUse> adapters{};  // of the request
};

// ---- the kinds of routes, by what they need ----

// Answers at once, on the I/O thread.
struct AtOnce {
  void (*run)(const ServerContext& context) = nullptr;
};

// Answers on the thread that reads requests, because the answer takes long to write.
struct OnWorker {
  void (*run)(const ServerContext& context) = nullptr;
};

// Changes the list of models, on a thread of its own: weights take long to copy. `body` is an object.
struct ChangesModels {
  void (*run)(const ServerContext& context, const Json& body) = nullptr;
  bool takes_long = false;  // hours, maybe: has another thread, so that other changes need not wait
  bool takes_array = false;  // `body` is an array instead
};

// Asks the model that the body names, once it is loaded. `body` is an object.
struct WithModel {
  void (*run)(const RouteContext& context, const Json& body) = nullptr;
  // Returns what the field "prompt" is; null: a text for the model as it is.
  PromptUse (*prompt_use)(const Json& body) = nullptr;
  // Returns the seconds that the model stays loaded; none: the request does not say it. Errors: kInvalidArgument.
  // Null: requests cannot say it.
  Result<std::optional<double>> (*stay_seconds)(const Json& body) = nullptr;
  // Answers a request that only loads or unloads its model. Returns whether it is one. Null: none is.
  bool (*only_loads)(const ServerContext& context, const ServedModel& model,
                     const Json& body) = nullptr;
  // Answers for a model that does not generate, which is not loaded then. Null: the request is refused.
  void (*without_text)(const ServerContext& context, const ServedModel& model) = nullptr;
  // Answers for a model that does not generate, which is loaded to embed or to rank. Null: see without_text.
  void (*with_embedder)(const EmbeddingContext& context, const Json& body) = nullptr;
};

// Asks the model that the body names for embeddings or ranks, once it is loaded. `body` is an object.
struct WithEmbedder {
  void (*run)(const EmbeddingContext& context, const Json& body) = nullptr;
  FilePurpose purpose =
      FilePurpose::kEmbedding;  // of the model that a request without a name means
  // As in WithModel.
  Result<std::optional<double>> (*stay_seconds)(const Json& body) = nullptr;
  bool (*only_loads)(const ServerContext& context, const ServedModel& model,
                     const Json& body) = nullptr;
};

enum class Audience {
  kUsers,           // who has a key, if there are keys
  kAdministrators,  // the same, but only those who see what concerns all users
  kEveryone,
};

struct Route {
  std::string_view method;  // GET is HEAD too
  // A part in braces stands for any text: "{id}" for one without a slash, "{id...}" for all that is left.
  std::string_view path;
  std::variant<AtOnce, OnWorker, ChangesModels, WithModel, WithEmbedder> kind;
  Audience audience = Audience::kUsers;  // the same for all methods of a path
};

}  // namespace kvcache::server
