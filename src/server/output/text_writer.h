// Turns the tokens of one request into text: whole characters, without what may begin a stop string.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request/text_stream.h"
#include "server/models/text_service.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::server {

class TextWriter {
 public:
  // `tokenizer` must outlive it.
  TextWriter(const Tokenizer& tokenizer, TextRequest request);

  const TextRequest& request() const { return request_; }
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
  void Emit(const std::string& text);

  const Tokenizer& tokenizer_;
  TextRequest request_;
  std::vector<float> logits_;  // that the next token is drawn from, if they are wanted
  TextStream text_;
  std::int32_t generated_ = 0;
  bool failed_ = false;
  bool refused_ = false;  // the reader wants no more
};

}  // namespace kvcache::server
