// Draws the next token of a request, and says whether its text continues.
//
// Thread safety: the engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler/job.h"
#include "speculation/verify_drafts.h"

namespace kvcache {

class JobSampler {
 public:
  // `engine` must outlive it. Throws std::bad_alloc.
  explicit JobSampler(const Engine& engine);

  // Draws a token from the logits [vocabulary] after `length` tokens, and adds it to the request's. If the text does
  // not continue, the request's result says why.
  DrawnToken Sample(Job& job, Position length, std::span<const float> logits);

 private:
  // Returns the token, or -1 if the text ends without one.
  std::int32_t Draw(Job& job, std::span<const float> logits);
  // Returns a token that the request allows; -1: it ends, as its result says.
  std::int32_t DrawAllowed(Job& job, std::span<const float> logits);

  // Few tokens end a text, so a list of them needs less of the processor's caches than a flag for each token.
  bool EndsText(std::int32_t token) const;

  std::vector<std::int32_t> ends_;  // tokens that end a text
  std::vector<float> allowed_;      // scratch
};

}  // namespace kvcache
