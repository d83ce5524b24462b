#include "server/answer.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/strings.h"
#include "engine/chat/json_text.h"
#include "server/log.h"
#include "server/request/pictures.h"

namespace kvcache::server {
namespace {

std::string_view AnthropicType(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string_view LlamaCppType(const ApiError& error) {
  if (error.code == "context_length_exceeded") return "exceed_context_size_error";
  switch (error.status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 503: return "unavailable_error";
    default: return error.status < 500 ? "invalid_request_error" : "server_error";
  }
}

Json OrNull(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

// The choices of one answer on their way to a client.
struct Choices {
  ModelLease lease;
  std::shared_ptr<HttpReply> reply;
  std::shared_ptr<RequestEntry> entry;
  Api api{};
  bool stream = false;
  bool begun = false;
  bool failed = false;
  std::size_t left = 0;  // that have not ended
  TextResult total{};
  std::vector<Json> wholes{};  // of the choices

  void Fail(const Status& status, AnswerShape& shape) {
    if (std::exchange(failed, true)) return;
    if (!begun) return SendError(*reply, api, FromStatus(status));
    entry->Fail(FromStatus(status).message);
    if (std::string last = shape.Failure(FromStatus(status)); !last.empty()) {
      reply->Write(std::move(last));
      return reply->End();
    }
    const std::string error = ErrorJson(api, FromStatus(status));
    const char* const name = api == Api::kAnthropic ? "event: error\n" : "";
    reply->Write(api == Api::kOllama ? error + "\n" : StrCat(name, "data: ", error, "\n\n"));
    reply->End();
  }
};

// One of them.
struct Delivery {
  std::shared_ptr<Choices> all;
  Json log = Json::object();  // who asked for what
  std::size_t index = 0;
  bool counts_prompt = true;
  std::shared_ptr<AnswerShape> shape;
  bool begun = false;
  AnswerParser parser{{}};
  Answer answer{};            // whole answers only
  std::int32_t thoughts = 0;  // tokens

  // A stream begins before its first text, so that its client sees signs of life while a long prompt is
  // computed.
  void Begin(const ReuseReport& reuse) {
    if (index == 0) all->entry->Start(reuse);
    if (!all->stream || std::exchange(begun, true)) return;
    if (!std::exchange(all->begun, true)) all->reply->Begin(std::string(shape->stream_type()));
    all->reply->Write(shape->Start(reuse));
  }

  // Counts a token, before its text. The tag that ends thoughts is one of them.
  void Count(std::int32_t token) {
    all->entry->CountToken();
    thoughts += parser.thinking() ? 1 : 0;
    shape->TakeToken(token);
  }

  // Returns whether the text goes on.
  bool Take(std::string_view piece) {
    TakeParts(parser.Push(piece));
    return !parser.done() && !all->failed;
  }

  void TakeParts(std::vector<AnswerPart> parts) {
    std::string out;
    for (AnswerPart& part : parts) {
      if (all->stream) {
        out += shape->Delta(part);
      } else if (part.kind == AnswerPart::Kind::kCall) {
        answer.calls.push_back(std::move(part.call));
      } else {
        (part.kind == AnswerPart::Kind::kText ? answer.text : answer.reasoning) += part.text;
      }
    }
    if (!out.empty()) all->reply->Write(std::move(out));
  }

  // Texts of prompts and answers stay out of logs.
  void Log(const TextResult& result) {
    Json& line = log;
    line["prompt_tokens"] = result.reuse.prompt;
    line["cached_tokens"] = result.reuse.restored;
    if (result.reuse.stored > 0) line["stored_tokens"] = result.reuse.stored;
    if (const Position at = result.reuse.difference.position; at >= 0) line["differs_at"] = at;
    line["generated_tokens"] = result.generated;
    line["first_token_ms"] = std::round(result.first_token_ms * 100.0) / 100.0;
    line["total_ms"] = std::round(result.total_ms * 100.0) / 100.0;
    if (!result.status.ok()) line["error"] = result.status.message();
    if (result.status.ok()) line["end"] = StopReasonName(result.stop);
    LogEvent(result.status.ok() ? LogLevel::kInfo : LogLevel::kError, "request", line);
  }

  void Finish(TextResult result) {
    Log(result);
    if (index == 0) all->entry->Finish(result);
    if (!result.status.ok()) return all->Fail(result.status, *shape);
    result.thoughts = thoughts;
    Begin(result.reuse);
    TakeParts(parser.Flush());
    all->total.generated += result.generated;
    if (counts_prompt) {
      all->total.reuse.prompt += result.reuse.prompt;
      all->total.reuse.restored += result.reuse.restored;
    }
    if (all->stream) {
      all->reply->Write(shape->End(result));
    } else {
      all->wholes[index] = shape->Whole(answer, result);
    }
    if (--all->left > 0 || all->failed) return;
    if (!all->stream) return SendWhole();
    all->reply->Write(shape->Last(all->total));
    all->reply->End();
  }

  void SendWhole() const {
    Json& whole = all->wholes.front();
    for (std::size_t i = 1; i < all->wholes.size(); ++i) shape->AddChoice(whole, all->wholes[i]);
    if (all->wholes.size() > 1) shape->SetTotal(whole, all->total);
    SendJson(*all->reply, whole);
  }
};

}  // namespace

Api ApiOf(std::string_view path) {
  if (path.starts_with("/api/")) return Api::kOllama;
  for (const char* name : {"/completion", "/completions", "/infill", "/props"}) {
    if (path == name) return Api::kLlamaCpp;
  }
  return path.starts_with("/v1/messages") ? Api::kAnthropic : Api::kOpenAi;
}

std::int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string NewId(std::string_view prefix) {
  static std::atomic<std::uint64_t> count{0};
  return StrCat(prefix,
                HexText(static_cast<std::uint64_t>(UnixSeconds()) << 24 | (++count & 0xffffff)));
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ErrorJson(Api api, const ApiError& error) {
  if (api == Api::kOllama) return Dump({{"error", error.message}});
  if (api == Api::kAnthropic) {
    return Dump({{"type", "error"},
                 {"error", {{"type", AnthropicType(error.status)}, {"message", error.message}}}});
  }
  if (api == Api::kLlamaCpp) {
    Json json = {{"code", error.status}, {"message", error.message}, {"type", LlamaCppType(error)}};
    json.update(error.more);
    return Dump({{"error", std::move(json)}});
  }
  return Dump({{"error",
                {{"message", error.message},
                 {"type", error.status < 500 ? "invalid_request_error" : "server_error"},
                 {"param", OrNull(error.param)},
                 {"code", OrNull(error.code)}}}});
}

void SendError(HttpReply& reply, Api api, const ApiError& error) {
  HttpHeaders headers;
  if (error.status == 429 || error.status == 503) headers.emplace_back("Retry-After", "1");
  reply.Send(error.status, ErrorJson(api, error), std::move(headers));
}

void SendJson(HttpReply& reply, const Json& json) {
  reply.Send(200, Dump(json));
}

void SendNotAllowed(const HttpRequest& request, std::string methods, HttpReply& reply) {
  const ApiError error{.status = 405,
                       .message = StrCat(Quoted(request.method), " is not allowed here")};
  reply.Send(405, ErrorJson(ApiOf(request.path), error), {{"Allow", std::move(methods)}});
}

ApiError FromFields(const Fields& fields) {
  return {.message = fields.error().message(), .param = fields.error_field()};
}

ApiError FromStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported: return {.status = 400, .message = status.message()};
    case StatusCode::kNotFound: return {.status = 404, .message = status.message()};
    case StatusCode::kCacheFull: return {.status = 429, .message = status.message()};
    case StatusCode::kCancelled:
    case StatusCode::kOutOfMemory: return {.status = 503, .message = status.message()};
    default: return {.status = 500, .message = status.message()};
  }
}

Result<std::string> ContentText(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (content.is_null()) return std::string();
  const Status wrong(StatusCode::kInvalidArgument, "must be a string or an array of text parts");
  if (!content.is_array()) return wrong;
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) return wrong;
    const auto& type = part["type"].get_ref<const std::string&>();
    if (type != "text" && type != "input_text" && type != "output_text") {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("has a part of type ", Quoted(type), "; only text is supported",
                           PictureKind(type).empty() ? "" : "; " + IgnoreImagesHint()));
    }
    if (!part.contains("text") || !part["text"].is_string()) return wrong;
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

namespace {

// APIs name thoughts differently; templates look for the first of these names.
void NameThoughts(Json& message) {
  for (const char* name : {"thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (message.contains("reasoning_content") || found == message.end()) continue;
    if (found->is_string()) message["reasoning_content"] = Json(*found);
  }
}

// Templates print arguments as JSON, so texts become what they say.
Status ReadCalls(Json& message, const std::string& name) {
  const auto found = message.find("tool_calls");
  if (found == message.end()) return Status::Ok();
  if (found->is_null() || (found->is_array() && found->empty())) {
    message.erase("tool_calls");
    return Status::Ok();
  }
  Status wrong(StatusCode::kInvalidArgument,
               StrCat("the 'tool_calls' of ", name,
                      " must be an array of objects with a 'function' that has a 'name'"));
  if (!found->is_array()) return wrong;
  for (Json& call : *found) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return wrong;
    }
    Json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string()) return wrong;
    if (!function.contains("arguments")) function["arguments"] = Json::object();
    if (!function["arguments"].is_string()) continue;
    auto parsed = ParseJson(function["arguments"].get_ref<const std::string&>());
    if (parsed.ok() && parsed->is_object()) function["arguments"] = std::move(*parsed);
  }
  return Status::Ok();
}

}  // namespace

Result<ChatInput> ReadMessages(const Json& messages) {
  const auto wrong = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  };
  if (!messages.is_array() || messages.empty()) {
    return wrong("'messages' must be an array with at least one message");
  }
  ChatInput input;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& given = messages[i];
    const std::string name = StrCat("'messages[", i, "]'");
    if (!given.is_object()) return wrong(StrCat(name, " must be an object"));
    if (!given.contains("role") || !given["role"].is_string()) {
      return wrong(StrCat(name, " has no 'role' that is a string"));
    }
    Json message = given;
    const auto role = given["role"].get<std::string>();
    const bool known = role == "system" || role == "developer" || role == "user" ||
                       role == "assistant" || role == "tool";
    if (!known) return wrong(StrCat("the role of ", name, " is unknown: ", Quoted(role)));
    if (role == "developer") message["role"] = "system";
    if (given.contains("images") && !given["images"].empty()) {
      return wrong(StrCat("the 'images' of ", name,
                          " are not supported: the model reads text only; ", IgnoreImagesHint()));
    }
    const bool may_be_empty = role == "assistant" || role == "tool";
    if ((!given.contains("content") || given["content"].is_null()) && !may_be_empty) {
      return wrong(StrCat(name, " has no 'content'"));
    }
    auto text = ContentText(given.contains("content") ? given["content"] : Json());
    if (!text.ok()) return wrong(StrCat("the 'content' of ", name, " ", text.status().message()));
    message["content"] = std::move(*text);
    if (role == "assistant") NameThoughts(message);
    KVCACHE_RETURN_IF_ERROR(ReadCalls(message, name));
    input.messages.push_back(std::move(message));
  }
  return input;
}

void AddStoredMessages(const ServedModel& model, ChatInput& input) {
  const Json* const first = input.messages.empty() ? nullptr : &input.messages.front();
  const bool has_system = first != nullptr && first->value("role", "") == "system";
  const auto after_system = input.messages.begin() + (has_system ? 1 : 0);
  input.messages.insert(after_system, model.messages.begin(), model.messages.end());
  if (has_system || model.system.empty()) return;
  input.messages.insert(input.messages.begin(),
                        Json({{"role", "system"}, {"content", model.system}}));
}

namespace {

// Returns the fields of a request that has none of its own.
Fields DefaultsOf(const ServedModel& model) {
  static const Json kNone = Json::object();
  return Fields(kNone, "", &model.parameters);
}

}  // namespace

std::vector<std::string> StoredStops(const ServedModel& model) {
  return DefaultsOf(model).Texts("stop", 16);
}

std::int32_t StoredMaxTokens(const ServedModel& model) {
  const std::int64_t tokens = DefaultsOf(model).Integer("num_predict", -1, -2, INT32_MAX);
  return tokens < 1 ? -1 : static_cast<std::int32_t>(tokens);
}

Result<Prompt> RenderChat(const RouteContext& context, ChatInput input) {
  AddStoredMessages(context.model, input);
  return context.service.Render(std::move(input));
}

namespace {

// Returns the error of a prompt that leaves the answer no place, in the words that clients of each API look for.
ApiError TooLong(Api api, const char* field, std::ptrdiff_t tokens, int context) {
  switch (api) {
    case Api::kAnthropic:
      return {.message =
                  StrCat("prompt is too long: ", tokens, " tokens > ", context - 1, " maximum")};
    case Api::kOllama:
      return {.message = StrCat("the input length exceeds the context length: the prompt has ",
                                tokens, " tokens, the context has ", context, " with the answer")};
    case Api::kLlamaCpp:
      return {.message =
                  StrCat("the request (", tokens, " tokens) exceeds the available context size (",
                         context, " tokens with the answer)"),
              .code = "context_length_exceeded",
              .more = {{"n_prompt_tokens", tokens}, {"n_ctx", context}}};
    case Api::kOpenAi: break;
  }
  return {.message =
              StrCat("This model's maximum context length is ", context,
                     " tokens with the answer; the prompt has ", tokens,
                     " and exceeds the context window. Please reduce the length of '", field, "'."),
          .param = field,
          .code = "context_length_exceeded"};
}

// Returns what the log says of a request before it has an end.
Json LogBegin(const RouteContext& context) {
  Json log = {{"model", context.model.name}};
  if (!context.user.name.empty()) log["user"] = context.user.name;
  const VolatileCounts& lines = context.volatile_lines;
  if (lines.removed > 0) log["removed_lines"] = lines.removed;
  if (lines.moved > 0) log["moved_lines"] = lines.moved;
  return log;
}

// Lets the parts of a request's text go to its delivery.
void Connect(TextRequest& request, const std::shared_ptr<Delivery>& delivery) {
  request.on_started = [delivery](const ReuseReport& reuse) { delivery->Begin(reuse); };
  request.on_logprob = [delivery](TokenLogprob token) { delivery->shape->Take(std::move(token)); };
  request.on_token = [delivery](std::int32_t token) { delivery->Count(token); };
  request.on_text = [delivery](std::string_view text) { return delivery->Take(text); };
  request.on_done = [delivery](const TextResult& result) { delivery->Finish(result); };
}

}  // namespace

void Deliver(const RouteContext& context, const TextRequest& request, bool stream, Api api,
             std::shared_ptr<AnswerShape> shape, const std::shared_ptr<HttpReply>& reply) {
  DeliverChoices(context, {{.request = request, .shape = std::move(shape)}}, stream, api, reply);
}

void DeliverChoices(const RouteContext& context, std::vector<AnswerChoice> choices, bool stream,
                    Api api, const std::shared_ptr<HttpReply>& reply) {
  TextService& service = context.service;
  const int most = service.engine().context();
  for (const AnswerChoice& choice : choices) {
    const auto tokens = std::ssize(choice.request.prompt.tokens);
    if (tokens < most) continue;
    return SendError(*reply, api, TooLong(api, choice.shape->prompt_field(), tokens, most));
  }
  const auto all = std::make_shared<Choices>();
  all->lease = context.lease;
  all->reply = reply;
  all->entry = context.entry;
  all->api = api;
  all->stream = stream;
  all->left = choices.size();
  all->wholes.resize(choices.size());
  std::vector<TextRequest> requests;
  for (AnswerChoice& choice : choices) {
    const auto delivery = std::make_shared<Delivery>();
    delivery->all = all;
    delivery->index = requests.size();
    delivery->counts_prompt = choice.counts_prompt;
    delivery->shape = choice.shape;
    delivery->log = LogBegin(context);
    delivery->parser = AnswerParser(choice.request.prompt.answer);
    choice.request.salt = context.user.salt;
    Connect(choice.request, delivery);
    requests.push_back(std::move(choice.request));
  }
  auto ids = service.Submit(std::move(requests));
  if (!ids.ok()) {
    // Some choices may have begun on the engine's thread.
    service.Look([all, shape = choices.front().shape, status = ids.status()](const auto&, auto) {
      all->Fail(status, *shape);
    });
    return;
  }
  reply->OnGone([lease = context.lease, ids = std::move(*ids)] {
    for (const RequestId id : ids) lease->Cancel(id);
  });
}

}  // namespace kvcache::server
