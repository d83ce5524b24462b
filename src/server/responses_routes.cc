// OpenAI's responses: one answer as a list of items, which a later request can go on from.
#include <memory>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/answer.h"
#include "server/request_sampling.h"
#include "server/responses_input.h"
#include "server/responses_store.h"
#include "server/tools.h"

namespace kvcache::server {
namespace {

// The items of an answer have no references.
std::optional<Json> NoItem(const std::string& /*id*/) {
  return std::nullopt;
}

class ResponsesShape final : public AnswerShape {
 public:
  struct Setup {
    Json response{};                 // the response before its first item
    Json messages{};                 // of the conversation so far
    bool seals_thoughts = false;     // into encrypted_content
    ResponseStore* store = nullptr;  // null: the response is not kept
    std::uint64_t owner = 0;         // the user's salt
  };

  explicit ResponsesShape(Setup setup) : setup_(std::move(setup)) {}

  std::string_view stream_type() const override { return "text/event-stream; charset=utf-8"; }
  const char* prompt_field() const override { return "input"; }

  std::string Start(const ReuseReport& /*reuse*/) override {
    const std::string created = Event("response.created", {{"response", setup_.response}});
    return created + Event("response.in_progress", {{"response", setup_.response}});
  }

  std::string Delta(const AnswerPart& part) override {
    std::string out;
    if (part.kind == AnswerPart::Kind::kCall) {
      out = CloseItem("completed");
      return out + CallItem(part.call);
    }
    if (open_ && part.kind != kind_) out = CloseItem("completed");
    if (!open_) out += OpenItem(part.kind);
    text_ += part.text;
    Json delta = Place();
    delta["delta"] = part.text;
    if (is_text()) delta["logprobs"] = Json::array();
    return out +
           Event(is_text() ? "response.output_text.delta" : "response.reasoning_text.delta", delta);
  }

  std::string End(const TextResult& result) override {
    // An answer without a word is an empty message.
    std::string out = output_.empty() && !open_ ? OpenItem(AnswerPart::Kind::kText) : "";
    const bool complete = result.stop != StopReason::kLength;
    out += CloseItem(complete ? "completed" : "incomplete");
    const Json response = Finished(result);
    return out +
           Event(complete ? "response.completed" : "response.incomplete", {{"response", response}});
  }

  Json Whole(const Answer& answer, const TextResult& result) override {
    if (!answer.reasoning.empty()) {
      (void)Delta({.kind = AnswerPart::Kind::kReasoning, .text = answer.reasoning});
    }
    if (!answer.text.empty()) {
      (void)Delta({.kind = AnswerPart::Kind::kText, .text = answer.text});
    }
    for (const ToolCall& call : answer.calls) {
      (void)Delta({.kind = AnswerPart::Kind::kCall, .call = call});
    }
    if (output_.empty() && !open_) (void)OpenItem(AnswerPart::Kind::kText);
    (void)CloseItem(result.stop == StopReason::kLength ? "incomplete" : "completed");
    return Finished(result);
  }

  std::string Failure(const ApiError& error) override {
    Json response = setup_.response;
    response["status"] = "failed";
    response["error"] = {{"code", error.code.empty() ? "server_error" : error.code},
                         {"message", error.message}};
    response["output"] = output_;
    return Event("response.failed", {{"response", std::move(response)}});
  }

 private:
  bool is_text() const { return kind_ == AnswerPart::Kind::kText; }

  std::string Event(const char* type, const Json& fields) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    return StrCat("event: ", type, "\ndata: ", Dump(event), "\n\n");
  }

  // The fields that say where a delta belongs.
  Json Place() const {
    return {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"content_index", 0}};
  }

  Json Part(const std::string& text) const {
    if (!is_text()) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  std::string ItemEvent(const char* type) {
    return Event(type, {{"output_index", output_.size()}, {"item", item_}});
  }

  std::string OpenItem(AnswerPart::Kind kind) {
    open_ = true;
    kind_ = kind;
    text_.clear();
    if (is_text()) {
      item_ = {{"type", "message"},
               {"id", NewId("msg_")},
               {"status", "in_progress"},
               {"role", "assistant"},
               {"content", Json::array()}};
    } else {
      item_ = {{"type", "reasoning"},
               {"id", NewId("rs_")},
               {"status", "in_progress"},
               {"summary", Json::array()},
               {"content", Json::array()}};
    }
    std::string out = ItemEvent("response.output_item.added");
    Json part = Place();
    part["part"] = Part("");
    return out + Event("response.content_part.added", part);
  }

  std::string CloseItem(const char* status) {
    if (!std::exchange(open_, false)) return {};
    Json done = Place();
    done["text"] = text_;
    if (is_text()) done["logprobs"] = Json::array();
    Json part = Place();
    part["part"] = Part(text_);
    item_["status"] = status;
    item_["content"].push_back(part["part"]);
    if (!is_text() && setup_.seals_thoughts) item_["encrypted_content"] = SealThoughts(text_);
    std::string out =
        Event(is_text() ? "response.output_text.done" : "response.reasoning_text.done", done);
    out += Event("response.content_part.done", part);
    return out + PushItem();
  }

  std::string PushItem() {
    std::string out = ItemEvent("response.output_item.done");
    output_.push_back(std::exchange(item_, Json()));
    return out;
  }

  // A call is whole when it comes.
  std::string CallItem(const ToolCall& call) {
    const std::string arguments = Dump(call.arguments);
    item_ = {{"type", "function_call"}, {"id", NewId("fc_")}, {"call_id", NewId("call_")},
             {"name", call.name},       {"arguments", ""},    {"status", "in_progress"}};
    std::string out = ItemEvent("response.output_item.added");
    const Json place = {{"item_id", item_["id"]}, {"output_index", output_.size()}};
    Json delta = place;
    delta["delta"] = arguments;
    out += Event("response.function_call_arguments.delta", delta);
    Json done = place;
    done["name"] = call.name;
    done["arguments"] = arguments;
    out += Event("response.function_call_arguments.done", done);
    item_["arguments"] = arguments;
    item_["status"] = "completed";
    return out + PushItem();
  }

  // Returns the response at its end, and keeps it.
  Json Finished(const TextResult& result) {
    Json& response = setup_.response;
    const bool complete = result.stop != StopReason::kLength;
    response["status"] = complete ? "completed" : "incomplete";
    if (complete) {
      response["completed_at"] = UnixSeconds();
    } else {
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    response["output"] = output_;
    response["usage"] = {{"input_tokens", result.reuse.prompt},
                         {"input_tokens_details", {{"cached_tokens", result.reuse.restored}}},
                         {"output_tokens", result.generated},
                         {"output_tokens_details", {{"reasoning_tokens", result.thoughts}}},
                         {"total_tokens", result.reuse.prompt + result.generated}};
    // The client of an interrupted request has left without the response's end.
    if (setup_.store != nullptr && result.stop != StopReason::kInterrupted &&
        AppendItems(output_, NoItem, setup_.messages).ok()) {
      setup_.store->Put(
          {.response = response, .messages = std::move(setup_.messages), .owner = setup_.owner});
    }
    return response;
  }

  Setup setup_;
  Json output_ = Json::array();  // the items that are done
  Json item_;                    // the next one
  bool open_ = false;            // whether it has begun
  AnswerPart::Kind kind_ = AnswerPart::Kind::kText;
  std::string text_;  // of the item
  std::int64_t sequence_ = 0;
};

void CheckObject(Fields& fields, const char* name) {
  const Json* const value = fields.Find(name);
  if (value != nullptr && !value->is_object()) fields.Fail(name, "must be an object");
}

Json ReadMetadata(Fields& fields) {
  const Json* const metadata = fields.Find("metadata");
  if (metadata == nullptr) return Json::object();
  CheckObject(fields, "metadata");
  bool texts = metadata->size() <= 16;
  for (const Json& value : *metadata) texts = texts && value.is_string();
  if (!texts) fields.Fail("metadata", "must have strings as values, and at most 16 keys");
  return *metadata;
}

// Reads what the response has besides its output. Returns whether thoughts are sealed.
bool ReadIncluded(Fields& fields) {
  const Json* const include = fields.Find("include");
  if (include == nullptr) return false;
  bool seals = false;
  bool texts = include->is_array();
  for (const Json& name : *include) {
    texts = texts && name.is_string();
    if (name == "message.output_text.logprobs") {
      fields.Fail("include", "has \"message.output_text.logprobs\"; that is not supported");
    }
    seals = seals || name == "reasoning.encrypted_content";
  }
  if (!texts) fields.Fail("include", "must be an array of strings");
  return seals;
}

// Reads the effort for the template. Templates that do not know it ignore it.
Json ReadReasoning(Fields& fields, ChatInput& input) {
  Json reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  const Json* const given = fields.Find("reasoning");
  if (given == nullptr) return reasoning;
  Fields inner(*given, "reasoning.");
  const std::string effort = inner.Text("effort");
  (void)inner.Text("summary");
  if (!inner.ok()) {
    fields.Fail("reasoning", "must be an object; 'effort' and 'summary' are strings");
    return reasoning;
  }
  if (effort.empty()) return reasoning;
  input.variables["reasoning_effort"] = effort;
  if (effort == "none") input.variables["enable_thinking"] = false;
  reasoning["effort"] = effort;
  return reasoning;
}

void CheckText(Fields& fields) {
  const Json* const text = fields.Find("text");
  if (text == nullptr) return;
  CheckObject(fields, "text");
  if (!text->is_object()) return;
  const Json verbosity = text->value("verbosity", Json());
  if (!verbosity.is_null() && verbosity != "medium") {
    fields.Fail("text.verbosity", "is not supported by this server, except \"medium\"");
  }
}

void CheckTruncation(Fields& fields) {
  const std::string truncation = fields.Text("truncation", "disabled");
  if (truncation != "disabled" && truncation != "auto") {
    fields.Fail("truncation", "must be \"disabled\" or \"auto\"");
  }
}

// What a request asks for.
struct Asked {
  Asked() noexcept(false) = default;
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  ResponsesShape::Setup setup{};
  TextRequest request{};
  bool stream = false;
};

// Reads the fields that the response repeats.
Json ReadResponse(const RouteContext& context, Fields& fields, ChatInput& input) {
  const auto text = [&](const char* name) {
    const std::string value = fields.Text(name);
    return value.empty() ? Json() : Json(value);
  };
  const auto or_null = [&](const char* name, const Json& otherwise) {
    const Json* const value = fields.Find(name);
    return value == nullptr ? otherwise : *value;
  };
  Json response = {{"id", NewId("resp_")},
                   {"object", "response"},
                   {"created_at", UnixSeconds()},
                   {"completed_at", nullptr},
                   {"status", "in_progress"},
                   {"background", false},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"instructions", text("instructions")},
                   {"max_output_tokens", or_null("max_output_tokens", nullptr)},
                   {"max_tool_calls", nullptr},
                   {"model", context.model.name},
                   {"output", Json::array()}};
  response["frequency_penalty"] = or_null("frequency_penalty", 0.0);
  response["parallel_tool_calls"] = fields.Bool("parallel_tool_calls", true);
  response["presence_penalty"] = or_null("presence_penalty", 0.0);
  response["previous_response_id"] = text("previous_response_id");
  response["prompt_cache_key"] = text("prompt_cache_key");
  response["reasoning"] = ReadReasoning(fields, input);
  response["safety_identifier"] = text("safety_identifier");
  response["service_tier"] = "default";
  response["store"] = fields.Bool("store", true);
  response["temperature"] = or_null("temperature", 1.0);
  response["text"] = {{"format", {{"type", "text"}}}, {"verbosity", "medium"}};
  if (const Json* const given = fields.Find("text"); given != nullptr && given->is_object()) {
    const Json format = given->value("format", Json());
    if (!format.is_null()) response["text"]["format"] = format;
  }
  response["tool_choice"] = or_null("tool_choice", "auto");
  response["tools"] = or_null("tools", Json::array());
  response["top_logprobs"] = 0;
  response["top_p"] = or_null("top_p", 1.0);
  response["truncation"] = "disabled";
  response["usage"] = nullptr;
  response["user"] = text("user");
  response["metadata"] = ReadMetadata(fields);
  return response;
}

void RefuseUnsupported(Fields& fields) {
  fields.Refuse("background", false);
  fields.Refuse("conversation");
  fields.Refuse("prompt");
  fields.Refuse("top_logprobs", 0);
  CheckText(fields);
  CheckTruncation(fields);
  CheckObject(fields, "client_metadata");
}

// Returns the messages: those of the previous response, then those of the input.
Result<Json> ReadInput(const RouteContext& context, const Fields& fields, Json previous) {
  const FindItem find = [&](const std::string& id) {
    return context.responses.GetItem(id, context.user.salt);
  };
  const Json* const input = fields.Find("input");
  Json messages = std::move(previous);
  if (input != nullptr) KVCACHE_RETURN_IF_ERROR(AppendItems(*input, find, messages));
  if (messages.empty()) {
    return Status(StatusCode::kInvalidArgument, "'input' must have at least one message");
  }
  return messages;
}

// Reads a request. Errors are answered; then there is nothing.
std::unique_ptr<Asked> Read(const RouteContext& context, const Json& body, HttpReply& reply) {
  const auto refuse = [&](const ApiError& error) {
    SendError(reply, Api::kOpenAi, error);
    return std::unique_ptr<Asked>();
  };
  Fields fields(body, "", &context.model.parameters);
  auto result = std::make_unique<Asked>();
  Asked& asked = *result;
  ChatInput extra;
  RefuseUnsupported(fields);
  const Tools tools = ReadResponsesTools(fields, context.service.calls());
  const AnswerForm form = ReadTextFormat(fields);
  Json& response = asked.setup.response = ReadResponse(context, fields, extra);
  asked.setup.seals_thoughts = ReadIncluded(fields);
  asked.stream = fields.Bool("stream", false);
  asked.request.max_tokens = static_cast<std::int32_t>(
      fields.Integer("max_output_tokens", StoredMaxTokens(context.model), 1, INT32_MAX));
  asked.request.sampling = ReadSampling(fields);
  asked.request.stop = StoredStops(context.model);
  if (!fields.ok()) return refuse(FromFields(fields));

  Json previous = Json::array();
  if (const Json& id = response["previous_response_id"]; id.is_string()) {
    auto stored = context.responses.Get(id.get<std::string>(), context.user.salt);
    if (!stored) {
      return refuse({.message = StrCat("there is no response ", Quoted(id.get<std::string>()),
                                       "; it may be too old, or was not stored"),
                     .param = "previous_response_id",
                     .code = "previous_response_not_found"});
    }
    previous = std::move(stored->messages);
  }
  auto messages = ReadInput(context, fields, std::move(previous));
  if (!messages.ok()) {
    ApiError error = FromStatus(messages.status());
    if (messages.status().code() == StatusCode::kUnsupported) error.status = 404;
    error.param = "input";
    return refuse(error);
  }
  if (response["store"] == true) asked.setup.store = &context.responses;
  asked.setup.owner = context.user.salt;
  asked.setup.messages = *messages;
  if (response["instructions"].is_string()) {
    messages->insert(messages->begin(),
                     Json({{"role", "system"}, {"content", response["instructions"]}}));
  }
  auto input = ReadMessages(*messages);
  if (input.ok()) {
    input->tools = tools.list;
    input->variables = std::move(extra.variables);
  }
  auto prompt = input.ok() ? RenderChat(context, std::move(*input)) : input.status();
  if (!prompt.ok()) {
    ApiError error = FromStatus(prompt.status());
    error.param = "input";
    return refuse(error);
  }
  asked.request.prompt = std::move(*prompt);
  asked.request.prompt.answer.one_call = tools.one_call;
  auto whole = FormOf(tools, form);
  if (!whole.ok()) {
    ApiError error = FromStatus(whole.status());
    error.param = "tools";
    return refuse(error);
  }
  asked.request.form = std::move(*whole);
  return result;
}

ApiError Unknown(const std::string& id) {
  return {.status = 404, .message = StrCat("there is no response ", Quoted(id))};
}

}  // namespace

void OpenAiResponse(const RouteContext& context, const Json& body,
                    const std::shared_ptr<HttpReply>& reply) {
  auto asked = Read(context, body, *reply);
  if (!asked) return;
  Deliver(context, asked->request, asked->stream, Api::kOpenAi,
          std::make_shared<ResponsesShape>(std::move(asked->setup)), reply);
}

void OpenAiResponseTokens(const RouteContext& context, const Json& body,
                          const std::shared_ptr<HttpReply>& reply) {
  const auto asked = Read(context, body, *reply);
  if (!asked) return;
  SendJson(*reply, {{"object", "response.input_tokens"},
                    {"input_tokens", asked->request.prompt.tokens.size()}});
}

void GetStoredResponse(const ServerContext& context, const std::string& id, HttpReply& reply) {
  const auto stored = context.responses.Get(id, context.user.salt);
  if (!stored) return SendError(reply, Api::kOpenAi, Unknown(id));
  SendJson(reply, stored->response);
}

void DeleteStoredResponse(const ServerContext& context, const std::string& id, HttpReply& reply) {
  if (!context.responses.Remove(id, context.user.salt))
    return SendError(reply, Api::kOpenAi, Unknown(id));
  SendJson(reply, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

}  // namespace kvcache::server
