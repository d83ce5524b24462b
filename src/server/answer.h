// What the routes of all APIs share: errors in each API's shape, conversations out of requests, and the
// delivery of an answer, whole or as a stream.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/responses/store.h"
#include "server/api_keys.h"
#include "server/http/http_server.h"
#include "server/models/model_host.h"
#include "server/models/text_service.h"
#include "server/request/fields.h"
#include "server/request/volatile_lines.h"
#include "server/request_log.h"
#include "server/tier_sampler.h"

namespace kvcache::server {

enum class Api { kOpenAi, kAnthropic, kOllama, kLlamaCpp };

// Returns the API whose route `path` is.
Api ApiOf(std::string_view path);

struct ApiError {
  int status = 400;
  std::string message;
  std::string param{};         // the field; empty: none
  std::string code{};          // empty: none
  Json more = Json::object();  // further keys, of llama.cpp's errors
};

std::string ErrorJson(Api api, const ApiError& error);
void SendError(HttpReply& reply, Api api, const ApiError& error);
void SendJson(HttpReply& reply, const Json& json);
// Says with status 405 which methods a route has.
void SendNotAllowed(const HttpRequest& request, std::string methods, HttpReply& reply);
// JSON in one line; bytes that are not UTF-8 become U+FFFD.
std::string Dump(const Json& json);

ApiError FromFields(const Fields& fields);
ApiError FromStatus(const Status& status);

// Returns the messages for the template: texts of parts are joined, `developer` is `system`, arguments of
// calls are objects.
Result<ChatInput> ReadMessages(const Json& messages);
// Returns a content as one text. Errors: a part that is not a text.
Result<std::string> ContentText(const Json& content);

// A whole answer.
struct Answer {
  std::string text{};
  std::string reasoning{};
  std::vector<ToolCall> calls{};
};

// The shape of an answer in one API. One thread at a time, the engine's.
class AnswerShape {
 public:
  virtual ~AnswerShape() = default;
  virtual std::string_view stream_type() const = 0;
  // Returns a stream's first bytes. `reuse` is known before the first text.
  virtual std::string Start(const ReuseReport& /*reuse*/) { return {}; }
  // Takes a token of the parts that come next; the second one only if log probabilities are wanted.
  virtual void TakeToken(std::int32_t /*token*/) {}
  virtual void Take(TokenLogprob /*token*/) {}
  virtual std::string Delta(const AnswerPart& part) = 0;
  virtual std::string End(const TextResult& result) = 0;
  // Returns a stream's last bytes, after the ends of all choices. `total` has the tokens of all, those of each
  // prompt once.
  virtual std::string Last(const TextResult& /*total*/) { return {}; }
  virtual Json Whole(const Answer& answer, const TextResult& result) = 0;
  // Returns the last bytes of a stream that fails; none: those of the API.
  virtual std::string Failure(const ApiError& /*error*/) { return {}; }
  // Returns the field of the request that the prompt is from, in OpenAI's API.
  virtual const char* prompt_field() const { return "messages"; }
  // Adds the choice of another whole answer.
  virtual void AddChoice(Json& /*whole*/, const Json& /*other*/) const {}
  // Sets the usage of a whole answer to that of all choices.
  virtual void SetTotal(Json& /*whole*/, const TextResult& /*total*/) const {}
};

struct ServerContext {
  ModelHost& host;
  ResponseStore& responses;
  const TierSampler& tiers;
  const RequestLog& requests;
  User user{};          // who asks; without keys, everyone is the same administrator
  std::string query{};  // of the request's address
  std::shared_ptr<RequestEntry> entry{};  // the request in the log; null: it is not logged, as GET
};

// With the model that the request asks for. A function that outlives the route must hold the lease.
struct RouteContext : ServerContext {
  RouteContext(const ServerContext& server, ServedModel asked, ModelLease loaded)
      : ServerContext(server), model(std::move(asked)), lease(std::move(loaded)), service(*lease) {}

  ServedModel model;
  ModelLease lease;
  TextService& service;
  VolatileCounts volatile_lines{};  // that were taken out of the request
};

// Renders a conversation, which begins with what the model's description says.
Result<Prompt> RenderChat(const RouteContext& context, ChatInput input);
// Adds what the model's description says to a conversation without a system message.
void AddStoredMessages(const ServedModel& model, ChatInput& input);
// Returns the texts that end answers by the model's description.
std::vector<std::string> StoredStops(const ServedModel& model);
// Returns the tokens that answers have at most by the model's description; -1: it says nothing.
std::int32_t StoredMaxTokens(const ServedModel& model);

// Generates, and answers as `shape` writes. The request is cancelled if the client leaves.
void Deliver(const RouteContext& context, const TextRequest& request, bool stream, Api api,
             std::shared_ptr<AnswerShape> shape, const std::shared_ptr<HttpReply>& reply);
// One of several choices of an answer.
struct AnswerChoice {
  TextRequest request{};
  std::shared_ptr<AnswerShape> shape{};
  bool counts_prompt = true;  // in the usage; the first choice of each prompt does
};
// The same for several choices, in the order of their indices.
void DeliverChoices(const RouteContext& context, std::vector<AnswerChoice> choices, bool stream,
                    Api api, const std::shared_ptr<HttpReply>& reply);

std::int64_t UnixSeconds();
// Returns a name that no other answer of this server has.
std::string NewId(std::string_view prefix);

// Returns the requests that have not ended, those of the user or, for an administrator, all; no texts.
Json SequencesJson(const Scheduler& scheduler, const User& user);

// The routes. `body` is an object.
void OpenAiChat(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void OpenAiCompletion(const RouteContext& context, const Json& body,
                      const std::shared_ptr<HttpReply>& reply);
Json ModelJson(const ServerContext& context, const ServedModel& model);
void OpenAiResponse(const RouteContext& context, const Json& body,
                    const std::shared_ptr<HttpReply>& reply);
void OpenAiResponseTokens(const RouteContext& context, const Json& body,
                          const std::shared_ptr<HttpReply>& reply);
void OpenAiResponseCompact(const RouteContext& context, const Json& body,
                           const std::shared_ptr<HttpReply>& reply);
// Returns whether a path is /v1/responses/{id}, …/input_items or …/cancel.
bool IsStoredResponse(std::string_view path);
// Answers requests for these. A large response takes long to read.
void HandleStoredResponse(const ServerContext& context, const HttpRequest& request,
                          HttpReply& reply);
void AnthropicMessages(const RouteContext& context, const Json& body,
                       const std::shared_ptr<HttpReply>& reply);
void AnthropicCountTokens(const RouteContext& context, const Json& body,
                          const std::shared_ptr<HttpReply>& reply);
// llama.cpp's own routes.
void LlamaCppCompletion(const RouteContext& context, const Json& body,
                        const std::shared_ptr<HttpReply>& reply);
// The same with OpenAI's fields beside llama.cpp's: clients of both ask at this path.
void LlamaCppCompletions(const RouteContext& context, const Json& body,
                         const std::shared_ptr<HttpReply>& reply);
void LlamaCppInfill(const RouteContext& context, const Json& body,
                    const std::shared_ptr<HttpReply>& reply);
void LlamaCppProps(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
void Tokenize(const RouteContext& context, const Json& body,
              const std::shared_ptr<HttpReply>& reply);
void Detokenize(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void ApplyTemplate(const RouteContext& context, const Json& body,
                   const std::shared_ptr<HttpReply>& reply);
void Probe(const RouteContext& context, const Json& body, const std::shared_ptr<HttpReply>& reply);
void Slots(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
void Health(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
void Version(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
void Metrics(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
void Models(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
void PageState(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
void PagePrefix(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
// Files of the page, which everyone may read.
bool IsPageFile(std::string_view path);
// REQUIRES: IsPageFile(path).
void SendPageFile(std::string_view path, HttpReply& reply);
void OllamaChat(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void OllamaGenerate(const RouteContext& context, const Json& body,
                    const std::shared_ptr<HttpReply>& reply);
void OllamaShow(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void OllamaTags(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
void OllamaRunning(const ServerContext& context, const std::shared_ptr<HttpReply>& reply);
// Change the list of models.
void OllamaCreate(const ServerContext& context, const Json& body,
                  const std::shared_ptr<HttpReply>& reply);
void OllamaCopy(const ServerContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void OllamaDelete(const ServerContext& context, const Json& body,
                  const std::shared_ptr<HttpReply>& reply);
// Answers a request of Ollama's API that only loads or lets go of its model. Returns whether it is one.
bool OllamaOnlyLoads(const ServerContext& context, const ServedModel& model, bool chat,
                     const Json& body, const std::shared_ptr<HttpReply>& reply);
// Returns a time as Ollama writes it.
std::string OllamaTime(std::int64_t unix_seconds);
// Returns the seconds of "keep_alive"; none: it is not given. Errors: kInvalidArgument.
Result<std::optional<double>> ReadKeepAlive(const Json& body);

}  // namespace kvcache::server
