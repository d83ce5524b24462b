#include "server/api/openai/shape.h"

#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/output/stamps.h"

namespace kvcache::server::openai {
namespace {

class Shape final : public AnswerShape {
 public:
  Shape(AnswerSetup setup, int index) : setup_(std::move(setup)), index_(index) {}

  const char* prompt_field() const override { return is_text() ? "prompt" : "messages"; }

  std::string Start(const ReuseReport& /*reuse*/) override {
    if (is_text()) return {};
    return ChoiceEvent(Choice({{"role", "assistant"}, {"content", ""}}, nullptr));
  }

  void Take(TokenLogprob token) override { tokens_.push_back(std::move(token)); }

  std::string Delta(const AnswerPart& part) override {
    if (is_text()) return ChoiceEvent(TextChoice(part.text, nullptr));
    switch (part.kind) {
      case AnswerPart::Kind::kText: return ChoiceEvent(Choice({{"content", part.text}}, nullptr));
      case AnswerPart::Kind::kReasoning:
        return ChoiceEvent(Choice({{"reasoning_content", part.text}}, nullptr));
      case AnswerPart::Kind::kCallBegin: ++calls_; return CallDelta(CallJson(part.call, ""));
      case AnswerPart::Kind::kCallArguments:
        return CallDelta({{"function", {{"arguments", part.text}}}});
      case AnswerPart::Kind::kCallEnd: return {};
    }
    return {};
  }

  std::string End(const TextResult& result) override {
    const Json reason = Reason(result);
    return ChoiceEvent(is_text() ? TextChoice("", reason) : Choice(Json::object(), reason));
  }

  std::string Last(const TextResult& total) override {
    std::string out;
    if (setup_.include_usage) {
      Json last = Envelope(true);
      last["choices"] = Json::array();
      last["usage"] = Usage(total);
      out += Event(last);
    }
    return out + "data: [DONE]\n\n";
  }

  void AddChoice(Json& whole, const Json& other) const override {
    whole["choices"].push_back(other["choices"][0]);
  }
  void SetTotal(Json& whole, const TextResult& total) const override {
    whole["usage"] = Usage(total);
  }

  Json Whole(const Answer& answer, const TextResult& result) override {
    calls_ = answer.calls.size();
    Json whole = Envelope(false);
    Json choice;
    if (is_text()) {
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
  bool is_text() const { return setup_.kind == Kind::kText; }

  static Json Message(const Answer& answer) {
    const bool only_calls = answer.text.empty() && !answer.calls.empty();
    Json message = {{"role", "assistant"},
                    {"content", only_calls ? Json() : Json(answer.text)},
                    {"refusal", nullptr}};
    if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
    for (const AnsweredCall& call : answer.calls) {
      message["tool_calls"].push_back(CallJson(call.call, call.written));
    }
    return message;
  }

  static Json CallJson(const ToolCall& call, const std::string& arguments) {
    return {{"id", CallId(call, "call_")},
            {"type", "function"},
            {"function", {{"name", call.name}, {"arguments", arguments}}}};
  }

  // Every delta of a call has its index; the name and the id are in the first one only.
  std::string CallDelta(const Json& fields) {
    Json delta = {{"index", calls_ - 1}};
    delta.update(fields);
    return ChoiceEvent(Choice({{"tool_calls", Json::array({std::move(delta)})}}, nullptr));
  }

  Json Reason(const TextResult& result) const {
    if (result.stop == StopReason::kLength) return "length";
    return calls_ > 0 ? "tool_calls" : "stop";
  }

  static Json ChatToken(const std::string& text, float logprob) {
    return {{"token", text}, {"logprob", logprob}, {"bytes", BytesJson(text)}};
  }

  // Returns those of the tokens since the last call.
  Json TakeLogprobs() {
    if (!setup_.logprobs) return nullptr;
    const std::vector<TokenLogprob> tokens = std::exchange(tokens_, {});
    return is_text() ? TextLogprobs(tokens) : ChatLogprobs(tokens);
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
    const char* object = is_text() ? "text_completion"
                         : stream  ? "chat.completion.chunk"
                                   : "chat.completion";
    return {{"id", setup_.id}, {"object", object}, {"created", created_}, {"model", setup_.model}};
  }

  std::string ChoiceEvent(Json choice) const {
    Json event = Envelope(true);
    event["choices"] = Json::array({std::move(choice)});
    if (setup_.include_usage) event["usage"] = nullptr;
    return Event(event);
  }

  const AnswerSetup setup_;
  std::vector<TokenLogprob> tokens_;  // not written yet
  std::size_t offset_ = 0;            // of the next token's text
  std::size_t calls_ = 0;
  const int index_;  // of the choice
  std::int64_t created_ = UnixSeconds();
};

}  // namespace

Json Usage(const TextResult& result) {
  return {{"prompt_tokens", result.reuse.prompt},
          {"completion_tokens", result.generated},
          {"total_tokens", result.reuse.prompt + result.generated},
          {"prompt_tokens_details", {{"cached_tokens", result.reuse.restored}}}};
}

Json BytesJson(const std::string& text) {
  Json bytes = Json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return bytes;
}

std::shared_ptr<AnswerShape> MakeShape(const AnswerSetup& setup, int index) {
  return std::make_shared<Shape>(setup, index);
}

}  // namespace kvcache::server::openai
