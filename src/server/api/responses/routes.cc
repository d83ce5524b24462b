// OpenAI's responses: one answer as a list of items, which a later request can go on from.
#include "server/api/routes.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/api/responses/compact.h"
#include "server/api/responses/conversation.h"
#include "server/api/responses/shape.h"
#include "server/api/responses/stored.h"
#include "server/output/delivery.h"
#include "server/output/stamps.h"
#include "server/request/asked_form.h"
#include "server/request/model_defaults.h"
#include "server/request/request_sampling.h"
#include "server/request/tools.h"

namespace kvcache::server::responses {
namespace {

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

  AnswerSetup setup{};
  TextRequest request{};
  bool stream = false;
};

Json ValueOr(const Fields& fields, const char* name, const Json& otherwise) {
  const Json* const value = fields.Find(name);
  return value == nullptr ? otherwise : *value;
}

// Returns a field that changes nothing and is repeated.
Json Hint(const Fields& fields, const char* name) {
  const Json value = ValueOr(fields, name, nullptr);
  return value.is_string() ? value : Json();
}

// Returns the tools with all keys that a function has.
Json RepeatedTools(const Fields& fields) {
  Json tools = ValueOr(fields, "tools", Json::array());
  for (Json& tool : tools) {
    if (!tool.is_object() || tool.value("type", Json()) != "function") continue;
    for (const char* const name : {"description", "parameters"}) {
      if (!tool.contains(name)) tool[name] = nullptr;
    }
    tool["strict"] = tool.value("strict", Json()) == true;
  }
  return tools;
}

Json RepeatedText(const Fields& fields) {
  Json text = {{"format", {{"type", "text"}}}, {"verbosity", "medium"}};
  const Json given = ValueOr(fields, "text", nullptr);
  if (!given.is_object()) return text;
  const Json format = given.value("format", Json());
  if (!format.is_null()) text["format"] = format;
  const Json verbosity = given.value("verbosity", Json());
  if (verbosity.is_string()) text["verbosity"] = verbosity;
  return text;
}

// Reads the fields that the response repeats.
Json ReadResponse(const RouteContext& context, Fields& fields, ChatInput& input) {
  const auto text = [&](const char* name) {
    const std::string value = fields.Text(name);
    return value.empty() ? Json() : Json(value);
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
                   {"max_output_tokens", ValueOr(fields, "max_output_tokens", nullptr)},
                   {"max_tool_calls", ValueOr(fields, "max_tool_calls", nullptr)},
                   {"model", context.model.name},
                   {"output", Json::array()}};
  if (response["max_output_tokens"] == -1) response["max_output_tokens"] = nullptr;
  response["frequency_penalty"] = ValueOr(fields, "frequency_penalty", 0.0);
  response["parallel_tool_calls"] = fields.Bool("parallel_tool_calls", true);
  response["presence_penalty"] = ValueOr(fields, "presence_penalty", 0.0);
  response["previous_response_id"] = text("previous_response_id");
  response["prompt_cache_key"] = Hint(fields, "prompt_cache_key");
  response["reasoning"] = ReadReasoning(fields, input);
  response["safety_identifier"] = Hint(fields, "safety_identifier");
  response["service_tier"] = "default";
  response["store"] = fields.Bool("store", true);
  response["temperature"] = ValueOr(fields, "temperature", 1.0);
  response["text"] = RepeatedText(fields);
  response["tool_choice"] = ValueOr(fields, "tool_choice", "auto");
  response["tools"] = RepeatedTools(fields);
  response["top_logprobs"] = 0;
  response["top_p"] = ValueOr(fields, "top_p", 1.0);
  response["truncation"] = "disabled";
  response["usage"] = nullptr;
  response["user"] = Hint(fields, "user");
  response["metadata"] = ReadMetadata(fields);
  return response;
}

void RefuseUnsupported(Fields& fields) {
  fields.Refuse("background", false);
  fields.Refuse("conversation");
  fields.Refuse("prompt");
  fields.Refuse("top_logprobs", 0);
  CheckObject(fields, "text");
  CheckTruncation(fields);
  CheckObject(fields, "client_metadata");
}

// Reads what the response repeats, and how the answer is drawn. Errors are kept in `fields`.
void ReadSettings(const RouteContext& context, Fields& fields, ChatInput& input, Asked& asked) {
  RefuseUnsupported(fields);
  asked.setup.response = ReadResponse(context, fields, input);
  asked.setup.seals_thoughts = ReadIncluded(fields);
  asked.stream = fields.Bool("stream", false);
  asked.request.max_tokens =
      ReadMostTokens(fields, "max_output_tokens", StoredMaxTokens(context.model));
  asked.request.sampling = ReadSampling(fields);
  asked.request.stop = StoredStops(context.model);
}

// Reads a request. Errors are answered; then there is nothing.
std::unique_ptr<Asked> Read(const RouteContext& context, const Json& body) {
  Fields fields(body, "", &context.model.parameters);
  auto asked = std::make_unique<Asked>();
  ChatInput input;
  ReadSettings(context, fields, input, *asked);
  const Tools tools = ReadResponsesTools(fields, context.service.dialect());
  const AnswerForm form = ReadAskedForm(fields);
  if (!fields.ok()) {
    context.Refuse(fields);
    return nullptr;
  }
  auto conversation = ReadConversation(context, fields);
  if (!conversation) return nullptr;
  if (asked->setup.response["store"] == true) asked->setup.store = &context.responses;
  asked->setup.owner = context.user.salt;
  asked->setup.items = std::move(conversation->items);
  input.messages = std::move(conversation->messages);
  input.tools = tools.list;
  auto prompt = Render(context, fields, std::move(input));
  if (!prompt) return nullptr;
  asked->request.prompt = std::move(*prompt);
  SetCalls(tools, asked->request.prompt.answer);
  auto whole = FormOf(tools, form);
  if (!whole.ok()) {
    context.Refuse(whole.status(), "tools");
    return nullptr;
  }
  asked->request.form = std::move(*whole);
  return asked;
}

void Create(const RouteContext& context, const Json& body) {
  auto asked = Read(context, body);
  if (!asked) return;
  Deliver(context, std::move(asked->request), asked->stream, MakeShape(std::move(asked->setup)));
}

void CountTokens(const RouteContext& context, const Json& body) {
  const auto asked = Read(context, body);
  if (!asked) return;
  context.Send(
      {{"object", "response.input_tokens"}, {"input_tokens", asked->request.prompt.tokens.size()}});
}

}  // namespace

std::vector<Route> Routes() {
  return {
      {"POST", "/v1/responses", WithModel{Create}},
      {"POST", "/v1/responses/input_tokens", WithModel{CountTokens}},
      {"POST", "/v1/responses/compact", WithModel{Compact}},
      {"GET", "/v1/responses/{id}", OnWorker{GetResponse}},
      {"DELETE", "/v1/responses/{id}", OnWorker{DeleteResponse}},
      {"GET", "/v1/responses/{id}/input_items", OnWorker{GetResponseItems}},
      {"POST", "/v1/responses/{id}/cancel", OnWorker{CancelResponse}},
  };
}

}  // namespace kvcache::server::responses
