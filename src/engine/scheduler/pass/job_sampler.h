// Draws the next token of a request, and says whether its text continues.
//
// Thread safety: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/scheduler/job.h"
#include "speculation/verify_drafts.h"

namespace kvcache {

class JobSampler {
 public:
  // Adds the seconds of its work to `sum`. All must outlive it.
  JobSampler(const Engine& engine, const std::function<double()>& clock, double& sum)
      : engine_(engine), clock_(clock), sum_(sum) {}

  // Draws a token from the logits [vocabulary] after `length` tokens, and adds it to the request's. If the text does
  // not continue, the request's result says why.
  DrawnToken Sample(Job& job, Position length, std::span<const float> logits);

 private:
  // Returns the token, or -1 if the text ends without one.
  std::int32_t Draw(Job& job, std::span<const float> logits);
  // Returns a token that the request allows; -1: it ends, as its result says.
  std::int32_t DrawAllowed(Job& job, std::span<const float> logits);

  const Engine& engine_;
  const std::function<double()>& clock_;
  double& sum_;
  std::vector<float> allowed_;  // scratch
};

}  // namespace kvcache
