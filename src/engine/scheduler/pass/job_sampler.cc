#include "engine/scheduler/pass/job_sampler.h"

#include <algorithm>

#include "base/seconds_since.h"
#include "engine/scheduler/request_calls.h"

namespace kvcache {

JobSampler::JobSampler(const Engine& engine) {
  for (std::int32_t token = 0; token < engine.vocabulary_size(); ++token) {
    if (engine.IsEndOfGeneration(token)) ends_.push_back(token);
  }
}

bool JobSampler::EndsText(std::int32_t token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

DrawnToken JobSampler::Sample(Job& job, Position length, std::span<const float> logits) {
  RequestResult& result = job.result;
  if (job.request.on_logits &&
      !CallOfRequest(job, [&] { job.request.on_logits(length, logits); })) {
    return {.continues = false};
  }
  result.stop = StopReason::kLength;
  const auto is_full = [&] {
    return job.request.max_tokens >= 0 &&
           result.tokens.size() >= static_cast<std::size_t>(job.request.max_tokens);
  };
  if (is_full()) return {.continues = false};
  DrawnToken drawn;
  CallOfRequest(job, [&] { drawn.token = Draw(job, logits); });
  drawn.continues = result.stop == StopReason::kLength;
  if (!drawn.continues) return drawn;
  if (job.request.on_token) {
    bool continues = false;
    CallOfRequest(job, [&] { continues = job.request.on_token(job.tokens.back()); });
    if (!continues) {
      result.stop = StopReason::kInterrupted;
      drawn.continues = false;
      return drawn;
    }
  }
  drawn.continues = !is_full() || job.is_complete();
  return drawn;
}

std::int32_t JobSampler::Draw(Job& job, std::span<const float> logits) {
  RequestResult& result = job.result;
  const std::int32_t token = DrawAllowed(job, logits);
  if (token < 0) return token;
  if (result.first_token_ms == 0.0) {
    result.first_token_ms = MillisecondsSince(job.submitted);
  }
  if (EndsText(token)) {
    result.stop = StopReason::kEndOfText;
    return token;
  }
  result.tokens.push_back(token);
  job.tokens.push_back(token);
  return token;
}

// The samplers see the logits of the tokens that are allowed.
std::int32_t JobSampler::DrawAllowed(Job& job, std::span<const float> logits) {
  TokenConstraint* const constraint = job.request.constraint.get();
  if (constraint == nullptr) return job.sampler.Sample(logits, job.tokens);
  allowed_.assign(logits.begin(), logits.end());
  if (constraint->complete()) {
    job.result.stop = StopReason::kEndOfText;
    return -1;
  }
  if (constraint->Apply(allowed_)) {
    const std::int32_t token = job.sampler.Sample(allowed_, job.tokens);
    if (constraint->Take(token)) return token;
  }
  job.result.stop = StopReason::kInterrupted;
  job.result.status = {StatusCode::kUnsupported,
                       "no token of the vocabulary continues with a text that is allowed"};
  return -1;
}

}  // namespace kvcache
