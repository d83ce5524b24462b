// An answer as llama.cpp's server writes it: one object, or events that each have the next text. Only the last one
// says how the text ended.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/output/answer_shape.h"
#include "server/output/stamps.h"

namespace kvcache::server::llamacpp {

struct AnswerSetup {
  std::string model{};
  std::string prompt{};  // the text that is shown; of tokens, theirs
  Json settings{};       // "generation_settings"
  bool returns_tokens = false;
  bool has_probabilities = false;
  bool has_choices = false;  // OpenAI's fields beside llama.cpp's
};

class Shape final : public AnswerShape {
 public:
  Shape(AnswerSetup setup, int index) : setup_(std::move(setup)), index_(index) {}

  std::string Start(const ReuseReport& reuse) override;
  void TakeToken(std::int32_t token) override;
  void Take(TokenLogprob token) override { probabilities_.push_back(std::move(token)); }
  std::string Delta(const AnswerPart& part) override;
  std::string End(const TextResult& result) override;
  Json Whole(const Answer& answer, const TextResult& result) override;
  void AddChoice(Json& whole, const Json& other) const override;
  void SetTotal(Json& whole, const TextResult& total) const override;
  const char* prompt_field() const override { return "prompt"; }

 private:
  Json TakeTokens();
  Json TakeProbabilities();
  // Returns what the end of an answer has, with `text` as its content.
  Json Ended(const std::string& text, const TextResult& result);
  void AddOpenAi(Json& event, const std::string& text, const TextResult* result) const;

  AnswerSetup setup_;
  int index_;
  std::string id_ = NewId("cmpl-");
  std::int64_t created_ = UnixSeconds();
  std::vector<std::int32_t> tokens_{};         // not written yet
  std::vector<TokenLogprob> probabilities_{};  // not written yet
  std::int32_t generated_ = 0;
  Position prompt_ = 0;
  bool has_new_line_ = false;
};

}  // namespace kvcache::server::llamacpp
