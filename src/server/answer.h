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

#include "server/fields.h"
#include "server/http_server.h"
#include "server/text_service.h"

namespace kvcache::server {

enum class Api { kOpenAi, kAnthropic, kOllama };

// Returns the API whose route `path` is.
Api ApiOf(std::string_view path);

struct ApiError {
  int status = 400;
  std::string message;
  std::string param{};  // the field; empty: none
  std::string code{};   // empty: none
};

std::string ErrorJson(Api api, const ApiError& error);
void SendError(HttpReply& reply, Api api, const ApiError& error);
void SendJson(HttpReply& reply, const Json& json);
// JSON in one line; bytes that are not UTF-8 become U+FFFD.
std::string Dump(const Json& json);

ApiError FromFields(const Fields& fields);
ApiError FromStatus(const Status& status);

// Returns the messages for the template: texts of parts are joined, `developer` is `system`, arguments of
// calls are objects.
Result<ChatInput> ReadMessages(const Json& messages);
// Returns a content as one text. Errors: a part that is not a text.
Result<std::string> ContentText(const Json& content);

struct ServedModel {
  std::string name;
  std::int64_t created = 0;  // seconds since 1970
  std::int64_t bytes = 0;    // of the file
};

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
  // Takes a token of the parts that come next.
  virtual void Take(TokenLogprob /*token*/) {}
  virtual std::string Delta(const AnswerPart& part) = 0;
  virtual std::string End(const TextResult& result) = 0;
  // Returns a stream's last bytes, after the ends of all choices. `total` has all of their tokens.
  virtual std::string Last(const TextResult& /*total*/) { return {}; }
  virtual Json Whole(const Answer& answer, const TextResult& result) = 0;
  // Adds the choice of another whole answer.
  virtual void AddChoice(Json& /*whole*/, const Json& /*other*/) const {}
};

// Generates, and answers as `shape` writes. The request is cancelled if the client leaves.
void Deliver(TextService& service, const TextRequest& request, bool stream, Api api,
             std::shared_ptr<AnswerShape> shape, const std::shared_ptr<HttpReply>& reply);
// The same for as many choices as there are shapes. The seeds of the others follow from the request's.
void DeliverChoices(TextService& service, const TextRequest& request, bool stream, Api api,
                    const std::vector<std::shared_ptr<AnswerShape>>& shapes,
                    const std::shared_ptr<HttpReply>& reply);

struct RouteContext {
  TextService& service;
  const ServedModel& model;
};

// Checks that the request asks for the model that is served. Returns whether it does; else has
// answered.
bool CheckModel(const RouteContext& context, Api api, const std::string& model, HttpReply& reply);

std::int64_t UnixSeconds();
// Returns a name that no other answer of this server has.
std::string NewId(std::string_view prefix);

// The routes. `body` is an object.
void OpenAiChat(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void OpenAiCompletion(const RouteContext& context, const Json& body,
                      const std::shared_ptr<HttpReply>& reply);
Json OpenAiModel(const ServedModel& model);
void AnthropicMessages(const RouteContext& context, const Json& body,
                       const std::shared_ptr<HttpReply>& reply);
void AnthropicCountTokens(const RouteContext& context, const Json& body,
                          const std::shared_ptr<HttpReply>& reply);
void Tokenize(const RouteContext& context, const Json& body,
              const std::shared_ptr<HttpReply>& reply);
void Detokenize(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void ApplyTemplate(const RouteContext& context, const Json& body,
                   const std::shared_ptr<HttpReply>& reply);
void Probe(const RouteContext& context, const Json& body, const std::shared_ptr<HttpReply>& reply);
void Slots(const RouteContext& context, const std::shared_ptr<HttpReply>& reply);
void OllamaChat(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void OllamaGenerate(const RouteContext& context, const Json& body,
                    const std::shared_ptr<HttpReply>& reply);
void OllamaShow(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply);
void OllamaTags(const RouteContext& context, const std::shared_ptr<HttpReply>& reply);
void OllamaRunning(const RouteContext& context, const std::shared_ptr<HttpReply>& reply);

}  // namespace kvcache::server
