// OpenAI's chat completions and completions.
#include <charconv>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/answer.h"
#include "server/request_sampling.h"
#include "server/template_fields.h"
#include "server/tools.h"

namespace kvcache::server {
namespace {

enum class Kind { kChat, kText };

class OpenAiShape final : public AnswerShape {
 public:
  // What all choices of an answer have.
  struct Common {
    Kind kind{};
    std::string model{};
    std::string id{};
    bool include_usage = false;
    bool logprobs = false;
  };

  OpenAiShape(const Common& common, int index)
      : kind_(common.kind),
        model_(common.model),
        include_usage_(common.include_usage),
        logprobs_(common.logprobs),
        id_(common.id),
        index_(index) {}

  std::string_view stream_type() const override { return "text/event-stream; charset=utf-8"; }

  std::string Start(const ReuseReport& /*reuse*/) override {
    if (kind_ == Kind::kText) return {};
    return Event(Choice({{"role", "assistant"}, {"content", ""}}, nullptr));
  }

  void Take(TokenLogprob token) override { tokens_.push_back(std::move(token)); }

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
    return Event(kind_ == Kind::kText ? TextChoice("", reason) : Choice(Json::object(), reason));
  }

  std::string Last(const TextResult& total) override {
    std::string out;
    if (include_usage_) {
      Json last = Envelope(true);
      last["choices"] = Json::array();
      last["usage"] = Usage(total);
      out += StrCat("data: ", Dump(last), "\n\n");
    }
    return out + "data: [DONE]\n\n";
  }

  void AddChoice(Json& whole, const Json& other) const override {
    whole["choices"].push_back(other["choices"][0]);
    const int tokens = other["usage"]["completion_tokens"].get<int>();
    for (const char* name : {"completion_tokens", "total_tokens"}) {
      Json& count = whole["usage"][name];
      count = count.get<int>() + tokens;
    }
  }

  Json Whole(const Answer& answer, const TextResult& result) override {
    calls_ = answer.calls.size();
    Json whole = Envelope(false);
    Json choice;
    if (kind_ == Kind::kText) {
      choice = TextChoice(answer.text, Reason(result));
    } else {
      choice = {{"index", index_},
                {"message", Message(answer)},
                {"logprobs", TakeLogprobs()},
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

  static Json ChatToken(const std::string& text, float logprob) {
    Json bytes = Json::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    return {{"token", text}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
  }

  // Returns those of the tokens since the last call.
  Json TakeLogprobs() {
    if (!logprobs_) return nullptr;
    const std::vector<TokenLogprob> tokens = std::exchange(tokens_, {});
    return kind_ == Kind::kText ? TextLogprobs(tokens) : ChatLogprobs(tokens);
  }

  static Json ChatLogprobs(const std::vector<TokenLogprob>& tokens) {
    Json content = Json::array();
    for (const TokenLogprob& token : tokens) {
      Json entry = ChatToken(token.text, token.logprob);
      entry["top_logprobs"] = Json::array();
      for (const auto& [text, logprob] : token.top) {
        entry["top_logprobs"].push_back(ChatToken(text, logprob));
      }
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  Json TextLogprobs(const std::vector<TokenLogprob>& tokens) {
    Json json = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
    for (const TokenLogprob& token : tokens) {
      Json top = Json::object();
      for (const auto& [text, logprob] : token.top) top[text] = logprob;
      json["tokens"].push_back(token.text);
      json["token_logprobs"].push_back(token.logprob);
      json["top_logprobs"].push_back(std::move(top));
      json["text_offset"].push_back(offset_);
      offset_ += token.text.size();
    }
    return json;
  }

  Json Choice(Json delta, Json reason) {
    return {{"index", index_},
            {"delta", std::move(delta)},
            {"logprobs", TakeLogprobs()},
            {"finish_reason", std::move(reason)}};
  }

  Json TextChoice(std::string_view text, Json reason) {
    return {{"text", text},
            {"index", index_},
            {"logprobs", TakeLogprobs()},
            {"finish_reason", std::move(reason)}};
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
  bool logprobs_;
  std::vector<TokenLogprob> tokens_;  // not written yet
  std::size_t offset_ = 0;            // of the next token's text
  std::size_t calls_ = 0;
  std::string id_;
  int index_;  // of the choice
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

// Returns how many of the most likely tokens are wanted; -1: no logprobs.
int ReadLogprobs(Fields& fields, Kind kind) {
  if (kind == Kind::kText) return static_cast<int>(fields.Integer("logprobs", -1, 0, 5));
  const bool wanted = fields.Bool("logprobs", false);
  const auto top = static_cast<int>(fields.Integer("top_logprobs", 0, 0, 20));
  if (!wanted && top > 0) fields.Fail("top_logprobs", "needs 'logprobs'");
  return wanted ? top : -1;
}

// Reads an object from tokens' numbers to biases.
std::vector<LogitBias> ReadBiases(const RouteContext& context, Fields& fields) {
  std::vector<LogitBias> biases;
  const Json* const given = fields.Find("logit_bias");
  if (given == nullptr) return biases;
  if (!given->is_object()) fields.Fail("logit_bias", "must be an object");
  const std::int32_t size = context.service.engine().vocabulary_size();
  for (const auto& [key, value] : given->items()) {
    std::int32_t token = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool known =
        read.ec == std::errc() && read.ptr == key.data() + key.size() && token >= 0 && token < size;
    const bool fits = value.is_number() && value >= -100 && value <= 100;
    if (!known || !fits) {
      fields.Fail("logit_bias",
                  "must have tokens of the model as keys, and numbers from -100 to 100");
      return biases;
    }
    biases.push_back({token, value.get<float>()});
  }
  return biases;
}

void RefuseOfChat(Fields& fields) {
  fields.Refuse("functions");
  fields.Refuse("function_call", "none");
  fields.Refuse("modalities", Json::array({"text"}));
  fields.Refuse("audio");
  fields.Refuse("web_search_options");
  fields.Refuse("verbosity", "medium");
}

std::int32_t MostTokens(Fields& fields, const char* name, std::int32_t fallback) {
  return static_cast<std::int32_t>(fields.Integer(name, fallback, 1, INT32_MAX));
}

void Generate(const RouteContext& context, Kind kind, TextRequest request, Fields& fields,
              const std::shared_ptr<HttpReply>& reply) {
  const bool stream = fields.Bool("stream", false);
  const bool include_usage = IncludesUsage(fields);
  const auto choices = static_cast<int>(fields.Integer("n", 1, 1, 16));
  request.stop = fields.Texts("stop", 16);
  request.sampling = ReadSampling(fields, -2.0);
  request.sampling.logit_bias = ReadBiases(context, fields);
  request.top_logprobs = ReadLogprobs(fields, kind);
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  const OpenAiShape::Common common{.kind = kind,
                                   .model = context.model.name,
                                   .id = NewId(kind == Kind::kChat ? "chatcmpl-" : "cmpl-"),
                                   .include_usage = include_usage,
                                   .logprobs = request.top_logprobs >= 0};
  std::vector<std::shared_ptr<AnswerShape>> shapes;
  shapes.reserve(static_cast<std::size_t>(choices));
  for (int i = 0; i < choices; ++i) shapes.push_back(std::make_shared<OpenAiShape>(common, i));
  DeliverChoices(context, request, stream, Api::kOpenAi, shapes, reply);
}

}  // namespace

void OpenAiChat(const RouteContext& context, const Json& body,
                const std::shared_ptr<HttpReply>& reply) {
  Fields fields(body, "", &context.model.parameters);
  RefuseOfChat(fields);
  const Tools tools = ReadOpenAiTools(fields, context.service.calls());
  const AnswerForm form = ReadResponseFormat(fields);
  ChatInput extra;
  ReadTemplateFields(fields, extra);
  const std::int32_t old_most = MostTokens(fields, "max_tokens", StoredMaxTokens(context.model));
  TextRequest request{.max_tokens = MostTokens(fields, "max_completion_tokens", old_most)};
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  auto input = ReadMessages(fields.Has("messages") ? *fields.Find("messages") : Json());
  if (input.ok()) {
    input->tools = tools.list;
    input->variables = std::move(extra.variables);
    input->generation_prompt = extra.generation_prompt;
  }
  auto prompt = input.ok() ? RenderChat(context, std::move(*input)) : input.status();
  if (!prompt.ok()) {
    ApiError error = FromStatus(prompt.status());
    error.param = "messages";
    return SendError(*reply, Api::kOpenAi, error);
  }
  request.prompt = std::move(*prompt);
  request.prompt.answer.one_call = tools.one_call;
  auto whole = FormOf(tools, form);
  if (!whole.ok()) {
    ApiError error = FromStatus(whole.status());
    error.param = "tools";
    return SendError(*reply, Api::kOpenAi, error);
  }
  request.form = std::move(*whole);
  Generate(context, Kind::kChat, std::move(request), fields, reply);
}

void OpenAiCompletion(const RouteContext& context, const Json& body,
                      const std::shared_ptr<HttpReply>& reply) {
  Fields fields(body, "", &context.model.parameters);
  fields.Refuse("best_of", 1);
  fields.Refuse("response_format", {{"type", "text"}});
  fields.Refuse("echo", false);
  fields.Refuse("suffix", "");
  const Json* const text = fields.Find("prompt");
  if (text == nullptr || !text->is_string()) {
    fields.Fail("prompt", "must be a string; arrays are not supported by this server");
  }
  TextRequest request{.max_tokens = MostTokens(fields, "max_tokens", 16)};
  if (!fields.ok()) return SendError(*reply, Api::kOpenAi, FromFields(fields));
  auto prompt = context.service.Encode(text->get_ref<const std::string&>());
  if (!prompt.ok()) return SendError(*reply, Api::kOpenAi, FromStatus(prompt.status()));
  request.prompt = std::move(*prompt);
  Generate(context, Kind::kText, std::move(request), fields, reply);
}

Json OpenAiModel(const ServedModel& model) {
  return {
      {"id", model.name}, {"object", "model"}, {"created", model.created}, {"owned_by", "kvcache"}};
}

}  // namespace kvcache::server
