// OpenAI's chat completions and completions.
#include <utility>

#include "base/strings.h"
#include "server/answer.h"
#include "server/request_sampling.h"
#include "server/tools.h"

namespace kvcache::server {
namespace {

enum class Kind { kChat, kText };

class OpenAiShape final : public AnswerShape {
 public:
  OpenAiShape(Kind kind, std::string model, bool include_usage)
      : kind_(kind), model_(std::move(model)), include_usage_(include_usage) {}

  std::string_view stream_type() const override { return "text/event-stream; charset=utf-8"; }

  std::string Start(const ReuseReport& /*reuse*/) override {
    if (kind_ == Kind::kText) return {};
    return Event(Choice({{"role", "assistant"}, {"content", ""}}, nullptr));
  }

  std::string Delta(const AnswerPart& part) override {
    if (kind_ == Kind::kText) return Event(TextChoice(part.text, nullptr));
    switch (part.kind) {
      case AnswerPart::Kind::kText: return Event(Choice({{"content", part.text}}, nullptr));
      case AnswerPart::Kind::kReasoning:
        return Event(Choice({{"reasoning_content", part.text}}, nullptr));
      case AnswerPart::Kind::kCall: return CallDeltas(part.call);
    }
    return {};
  }

  std::string End(const TextResult& result) override {
    const Json reason = Reason(result);
    std::string out =
        Event(kind_ == Kind::kText ? TextChoice("", reason) : Choice(Json::object(), reason));
    if (include_usage_) {
      Json last = Envelope(true);
      last["choices"] = Json::array();
      last["usage"] = Usage(result);
      out += StrCat("data: ", Dump(last), "\n\n");
    }
    return out + "data: [DONE]\n\n";
  }

  Json Whole(const Answer& answer, const TextResult& result) override {
    calls_ = answer.calls.size();
    Json whole = Envelope(false);
    Json choice = TextChoice(answer.text, Reason(result));
    if (kind_ == Kind::kChat) {
      choice = {{"index", 0},
                {"message", Message(answer)},
                {"logprobs", nullptr},
                {"finish_reason", Reason(result)}};
    }
    whole["choices"] = Json::array({choice});
    whole["usage"] = Usage(result);
    return whole;
  }

 private:
  static Json Message(const Answer& answer) {
    const bool only_calls = answer.text.empty() && !answer.calls.empty();
    Json message = {{"role", "assistant"},
                    {"content", only_calls ? Json() : Json(answer.text)},
                    {"refusal", nullptr}};
    if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
    for (const ToolCall& call : answer.calls) {
      message["tool_calls"].push_back(
          {{"id", NewId("call_")},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", Dump(call.arguments)}}}});
    }
    return message;
  }

  // The name comes first, then the arguments; every delta has the index.
  std::string CallDeltas(const ToolCall& call) {
    const std::size_t index = calls_++;
    const auto delta = [&](Json json) {
      return Event(Choice({{"tool_calls", Json::array({std::move(json)})}}, nullptr));
    };
    return delta({{"index", index},
                  {"id", NewId("call_")},
                  {"type", "function"},
                  {"function", {{"name", call.name}, {"arguments", ""}}}}) +
           delta({{"index", index}, {"function", {{"arguments", Dump(call.arguments)}}}});
  }

  Json Reason(const TextResult& result) const {
    if (result.stop == StopReason::kLength) return "length";
    return calls_ > 0 ? "tool_calls" : "stop";
  }

  static Json Usage(const TextResult& result) {
    return {{"prompt_tokens", result.reuse.prompt},
            {"completion_tokens", result.generated},
            {"total_tokens", result.reuse.prompt + result.generated},
            {"prompt_tokens_details", {{"cached_tokens", result.reuse.restored}}}};
  }

  static Json Choice(Json delta, Json reason) {
    return {{"index", 0},
            {"delta", std::move(delta)},
            {"logprobs", nullptr},
            {"finish_reason", std::move(reason)}};
  }

  static Json TextChoice(std::string_view text, Json reason) {
    return {
        {"text", text}, {"index", 0}, {"logprobs", nullptr}, {"finish_reason", std::move(reason)}};
  }

  Json Envelope(bool stream) const {
    const char* object = kind_ == Kind::kText ? "text_completion"
                         : stream             ? "chat.completion.chunk"
                                              : "chat.completion";
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
  }

  std::string Event(Json choice) const {
    Json event = Envelope(true);
    event["choices"] = Json::array({std::move(choice)});
    if (include_usage_) event["usage"] = nullptr;
    return StrCat("data: ", Dump(event), "\n\n");
  }

  Kind kind_;
  std::string model_;
  bool include_usage_;
  std::size_t calls_ = 0;
  std::string id_ = NewId(kind_ == Kind::kChat ? "chatcmpl-" : "cmpl-");
  std::int64_t created_ = UnixSeconds();
};

bool IncludesUsage(Fields& fields) {
  const Json* const options = fields.Find("stream_options");
  if (options == nullptr) return false;
  Fields inner(*options, "stream_options.");
  const bool include = inner.Bool("include_usage", false);
  if (!inner.ok()) fields.Fail("stream_options", "must be an object; 'include_usage' is a boolean");
  return include;
}

void RefuseUnsupported(Fields& fields) {
  fields.Refuse("n", 1);
  fields.Refuse("logit_bias");
  fields.Refuse("top_logprobs", 0);
  fields.Refuse("logprobs", false);
}

// Reads variables of the template. Templates that do not know one ignore it.
void ReadVariables(Fields& fields, ChatInput& input) {
  const std::string effort = fields.Text("reasoning_effort");
  if (!effort.empty()) input.variables["reasoning_effort"] = effort;
  if (effort == "none") input.variables["enable_thinking"] = false;
  const Json* const more = fields.Find("chat_template_kwargs");
  if (more == nullptr) return;
  if (!more->is_object()) return fields.Fail("chat_template_kwargs", "must be an object");
  input.variables.update(*more);
}

void RefuseOfChat(Fields& fields) {
  RefuseUnsupported(fields);
  fields.Refuse("functions");
  fields.Refuse("function_call", "none");
  fields.Refuse("response_format", {{"type", "text"}});
  fields.Refuse("modalities", Json::array({"text"}));
  fields.Refuse("audio");
  fields.Refuse("web_search_options");
  fields.Refuse("verbosity", "medium");
}

std::int32_t MostTokens(Fields& fields, const char* name, std::int32_t fallback) {
  return static_cast<std::int32_t>(fields.Integer(name, fallback, 1, INT32_MAX));
}

void Generate(const RouteContext& context, Kind kind, TextRequest request, Fields& fields,
              std::shared_ptr<HttpReply> reply) {
  const bool stream = fields.Bool("stream", false);
  const bool include_usage = IncludesUsage(fields);
  request.stop = fields.Texts("stop", 16);
  request.sampling = ReadSampling(fields, -2.0);
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  auto shape = std::make_shared<OpenAiShape>(kind, context.model.name, include_usage);
  Deliver(context.service, std::move(request), stream, Api::kOpenAi, std::move(shape),
          std::move(reply));
}

}  // namespace

void OpenAiChat(const RouteContext& context, const Json& body, std::shared_ptr<HttpReply> reply) {
  Fields fields(body);
  const std::string model = fields.Text("model");
  RefuseOfChat(fields);
  const Tools tools = ReadOpenAiTools(fields, context.service.calls());
  ChatInput extra;
  ReadVariables(fields, extra);
  const std::int32_t old_most = MostTokens(fields, "max_tokens", -1);
  TextRequest request{.max_tokens = MostTokens(fields, "max_completion_tokens", old_most)};
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  if (!CheckModel(context, Api::kOpenAi, model, *reply)) return;
  auto input = ReadMessages(fields.Has("messages") ? *fields.Find("messages") : Json());
  if (input.ok()) {
    input->tools = tools.list;
    input->variables = std::move(extra.variables);
  }
  auto prompt = input.ok() ? context.service.Render(std::move(*input)) : input.status();
  if (!prompt.ok()) {
    ApiError error = FromStatus(prompt.status());
    error.param = "messages";
    return SendError(*reply, Api::kOpenAi, error);
  }
  request.prompt = std::move(*prompt);
  request.prompt.answer.one_call = tools.one_call;
  Generate(context, Kind::kChat, std::move(request), fields, std::move(reply));
}

void OpenAiCompletion(const RouteContext& context, const Json& body,
                      std::shared_ptr<HttpReply> reply) {
  Fields fields(body);
  const std::string model = fields.Text("model");
  RefuseUnsupported(fields);
  fields.Refuse("best_of", 1);
  fields.Refuse("echo", false);
  fields.Refuse("suffix", "");
  const Json* const text = fields.Find("prompt");
  if (text == nullptr || !text->is_string()) {
    fields.Fail("prompt", "must be a string; arrays are not supported by this server");
  }
  TextRequest request{.max_tokens = MostTokens(fields, "max_tokens", 16)};
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  if (!CheckModel(context, Api::kOpenAi, model, *reply)) return;
  auto prompt = context.service.Encode(text->get_ref<const std::string&>());
  if (!prompt.ok()) return SendError(*reply, Api::kOpenAi, FromStatus(prompt.status()));
  request.prompt = std::move(*prompt);
  Generate(context, Kind::kText, std::move(request), fields, std::move(reply));
}

Json OpenAiModel(const ServedModel& model) {
  return {
      {"id", model.name}, {"object", "model"}, {"created", model.created}, {"owned_by", "kvcache"}};
}

}  // namespace kvcache::server
