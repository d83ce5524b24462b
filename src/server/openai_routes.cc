// OpenAI's chat completions and completions.
#include <atomic>
#include <random>
#include <utility>

#include "base/strings.h"
#include "server/answer.h"
#include "server/request_sampling.h"

namespace kvcache::server {
namespace {

enum class Kind { kChat, kText };

std::string NewId(Kind kind) {
  static std::atomic<std::uint64_t> count{0};
  return StrCat(kind == Kind::kChat ? "chatcmpl-" : "cmpl-",
                HexText(static_cast<std::uint64_t>(UnixSeconds()) << 24 | (++count & 0xffffff)));
}

class OpenAiShape final : public AnswerShape {
 public:
  OpenAiShape(Kind kind, std::string model, bool include_usage)
      : kind_(kind), model_(std::move(model)), include_usage_(include_usage) {}

  std::string_view stream_type() const override { return "text/event-stream; charset=utf-8"; }

  std::string Start() override {
    if (kind_ == Kind::kText) return {};
    return Event(Choice({{"role", "assistant"}, {"content", ""}}, nullptr));
  }

  std::string Delta(std::string_view text) override {
    if (kind_ == Kind::kText) return Event(TextChoice(text, nullptr));
    return Event(Choice({{"content", text}}, nullptr));
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

  Json Whole(const std::string& text, const TextResult& result) override {
    Json whole = Envelope(false);
    Json choice = TextChoice(text, Reason(result));
    if (kind_ == Kind::kChat) {
      choice = {{"index", 0},
                {"message", {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}}},
                {"logprobs", nullptr},
                {"finish_reason", Reason(result)}};
    }
    whole["choices"] = Json::array({choice});
    whole["usage"] = Usage(result);
    return whole;
  }

 private:
  static Json Reason(const TextResult& result) {
    return result.stop == StopReason::kLength ? "length" : "stop";
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
  std::string id_ = NewId(kind_);
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

// Tools of unknown types leave the prompt as it is; functions would change the answer.
void RefuseTools(Fields& fields) {
  const Json* const tools = fields.Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return fields.Fail("tools", "must be an array");
  for (const Json& tool : *tools) {
    if (tool.is_object() && tool.value("type", Json()) == "function") {
      return fields.Fail("tools", "is not supported by this server");
    }
  }
}

void RefuseOfChat(Fields& fields) {
  RefuseUnsupported(fields);
  RefuseTools(fields);
  if (const Json* const choice = fields.Find("tool_choice");
      choice != nullptr && *choice != "auto" && *choice != "none") {
    fields.Fail("tool_choice", "is not supported by this server");
  }
  fields.Refuse("functions");
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
  const std::int32_t old_most = MostTokens(fields, "max_tokens", -1);
  TextRequest request{.max_tokens = MostTokens(fields, "max_completion_tokens", old_most)};
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  if (!CheckModel(context, Api::kOpenAi, model, *reply)) return;
  auto input = ReadMessages(fields.Has("messages") ? *fields.Find("messages") : Json());
  auto prompt = input.ok() ? context.service.Render(std::move(*input)) : input.status();
  if (!prompt.ok()) {
    ApiError error = FromStatus(prompt.status());
    error.param = "messages";
    return SendError(*reply, Api::kOpenAi, error);
  }
  request.prompt = std::move(*prompt);
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
