// Turns the tokens of one request into text: whole characters, without what may begin a stop string.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request/text_stream.h"
#include "server/models/text_service.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::server {

class TextWriter {
 public:
  // `tokenizer` must outlive it.
  TextWriter(const Tokenizer& tokenizer, TextRequest request);

  void Started(const ReuseReport& reuse);
  // Takes what the next token is drawn from.
  void TakeLogits(std::span<const float> logits);
  // Returns whether the text goes on. Without memory for it, it ends with an error.
  bool Push(std::int32_t token);
  // Without memory for the answer there is none: the connection says so.
  // `interrupted` is the error of a request that was cancelled; Ok: it just ends.
  void Finish(const RequestResult& result, PromptDifference difference, const Status& interrupted);

 private:
  bool Take(std::int32_t token);
  TokenLogprob LogprobOf(std::int32_t token) const;
  void Deliver(const RequestResult& result, PromptDifference difference, Status status);
  bool IsOfModel(const std::string& stop) const;
  void Emit(const std::string& text);

  const Tokenizer& tokenizer_;
  std::function<void(const ReuseReport&)> on_started_;
  std::function<void(TokenLogprob)> on_logprob_;
  std::size_t top_logprobs_;
  std::vector<float> logits_;  // that the next token is drawn from, if they are wanted
  std::function<void(std::int32_t)> on_token_;
  std::function<bool(std::string_view)> on_text_;
  std::function<void(const TextResult&)> on_done_;
  std::vector<std::string> model_stops_;
  TextStream text_;
  std::int32_t generated_ = 0;
  bool failed_ = false;
  bool refused_ = false;  // the reader wants no more
};

}  // namespace kvcache::server
