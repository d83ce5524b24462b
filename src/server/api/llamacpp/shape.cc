#include "server/api/llamacpp/shape.h"

#include <algorithm>
#include <utility>

#include "server/api/openai/shape.h"

namespace kvcache::server::llamacpp {
namespace {

Json TokenJson(std::int32_t token, const std::string& text, float logprob) {
  return {{"id", token}, {"token", text}, {"bytes", openai::BytesJson(text)}, {"logprob", logprob}};
}

double PerSecond(double count, double milliseconds) {
  return milliseconds > 0.0 ? count * 1000.0 / milliseconds : 0.0;
}

Json Timings(const TextResult& result) {
  const std::int32_t computed = result.reuse.prompt - result.reuse.restored;
  const double prompt_ms = result.first_token_ms;
  const double rest_ms = std::max(0.0, result.total_ms - result.first_token_ms);
  return {{"cache_n", result.reuse.restored},
          {"prompt_n", computed},
          {"prompt_ms", prompt_ms},
          {"prompt_per_token_ms", computed > 0 ? prompt_ms / computed : 0.0},
          {"prompt_per_second", PerSecond(computed, prompt_ms)},
          {"predicted_n", result.generated},
          {"predicted_ms", rest_ms},
          {"predicted_per_token_ms", result.generated > 0 ? rest_ms / result.generated : 0.0},
          {"predicted_per_second", PerSecond(result.generated, rest_ms)}};
}

const char* StopType(const TextResult& result) {
  if (!result.stop_string.empty()) return "word";
  return result.stop == StopReason::kLength ? "limit" : "eos";
}

}  // namespace

std::string Shape::Start(const ReuseReport& reuse) {
  prompt_ = reuse.prompt;
  return {};
}

void Shape::TakeToken(std::int32_t token) {
  ++generated_;
  if (setup_.returns_tokens) tokens_.push_back(token);
}

std::string Shape::Delta(const AnswerPart& part) {
  has_new_line_ = has_new_line_ || part.text.find('\n') != std::string::npos;
  Json event = {{"index", index_},
                {"content", part.text},
                {"tokens", TakeTokens()},
                {"stop", false},
                {"id_slot", -1},
                {"tokens_predicted", generated_},
                {"tokens_evaluated", prompt_}};
  if (setup_.has_probabilities) event["completion_probabilities"] = TakeProbabilities();
  AddOpenAi(event, part.text, nullptr);
  return Event(event);
}

std::string Shape::End(const TextResult& result) {
  return Event(Ended("", result));
}

Json Shape::Whole(const Answer& answer, const TextResult& result) {
  has_new_line_ = answer.text.find('\n') != std::string::npos;
  return Ended(answer.text, result);
}

void Shape::AddChoice(Json& whole, const Json& other) const {
  if (setup_.has_choices) {
    whole["choices"].push_back(other["choices"][0]);
    return;
  }
  if (!whole.is_array()) whole = Json::array({std::move(whole)});
  whole.push_back(other);
}

void Shape::SetTotal(Json& whole, const TextResult& total) const {
  if (setup_.has_choices) whole["usage"] = openai::Usage(total);
}

Json Shape::Ended(const std::string& text, const TextResult& result) {
  Json json = {{"index", index_},
               {"content", text},
               {"tokens", TakeTokens()},
               {"id_slot", -1},
               {"stop", true},
               {"model", setup_.model},
               {"tokens_predicted", result.generated},
               {"tokens_evaluated", result.reuse.prompt},
               {"generation_settings", setup_.settings},
               {"prompt", setup_.prompt},
               {"has_new_line", has_new_line_},
               {"truncated", false},
               {"stop_type", StopType(result)},
               {"stopping_word", result.stop_string},
               {"tokens_cached", result.reuse.restored},
               {"timings", Timings(result)}};
  if (setup_.has_probabilities) json["completion_probabilities"] = TakeProbabilities();
  AddOpenAi(json, text, &result);
  return json;
}

void Shape::AddOpenAi(Json& event, const std::string& text, const TextResult* result) const {
  if (!setup_.has_choices) return;
  Json reason;
  if (result != nullptr) reason = result->stop == StopReason::kLength ? "length" : "stop";
  event.update(Json{{"id", id_},
                    {"object", "text_completion"},
                    {"created", created_},
                    {"model", setup_.model},
                    {"choices", Json::array({{{"index", index_},
                                              {"text", text},
                                              {"logprobs", nullptr},
                                              {"finish_reason", reason}}})}});
  if (result != nullptr) event["usage"] = openai::Usage(*result);
}

Json Shape::TakeTokens() {
  return Json(std::exchange(tokens_, {}));
}

Json Shape::TakeProbabilities() {
  Json list = Json::array();
  for (const TokenLogprob& token : std::exchange(probabilities_, {})) {
    Json entry = TokenJson(token.token, token.text, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (std::size_t i = 0; i < token.top.size(); ++i) {
      entry["top_logprobs"].push_back(
          TokenJson(token.top_tokens[i], token.top[i].first, token.top[i].second));
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace kvcache::server::llamacpp
