#include "engine/scheduler/pass/pass_results.h"

#include <utility>

#include "engine/engine_impl.h"
#include "engine/scheduler/job_saves.h"
#include "engine/scheduler/request_calls.h"

namespace kvcache {
namespace {

// A pass that evaluates again what a full context lost counts as one of a token.
void CountDecode(const PassRows& of) {
  RequestResult& result = of.job->result;
  const bool decodes = of.drafted > 0 || of.samples || of.job->is_complete();
  if (result.tokens.empty() || !decodes) return;
  ++result.decode_passes;
  result.decoded_tokens += of.drafted > 0 ? of.kept : 1;
}

}  // namespace

bool PassResults::Take(const PassRows& of) {
  Job& job = *of.job;
  job.length += of.drafted > 0 ? of.kept : of.tokens;
  if (job.length > job.furthest) {
    job.furthest = job.length;
    job.failures = 0;
  }
  if (job.result.tokens.empty() && job.request.on_prefill) {
    const Position read = engine_.has_encoder() ? job.result.reuse.prompt : job.length;
    if (!CallOfRequest(job, [&] { job.request.on_prefill(read); })) return false;
  }
  CountDecode(of);
  if (of.drafted > 0) return TakeDrafts(of);
  if (of.samples) return DrawNext(of);
  prefixes_.TakeCaptures(job);
  if (!job.is_complete() || job.pending() > 0) return true;
  job.result.stop = StopReason::kLength;
  return false;
}

bool PassResults::TakeDrafts(const PassRows& of) {
  Job& job = *of.job;
  if (job.can_keep) {
    prefixes_.TakeCaptures(job);
    if (prefixes_.IsKeepDue(job) && of.kept > 0) prefixes_.Keep(job);
  }
  if (of.continues) job.in_prompt = job.pending() > 1;
  return of.continues;
}

bool PassResults::DrawNext(const PassRows& of) {
  Job& job = *of.job;
  const std::span<const float> logits = runner_.Logits(of);
  if (Status finite = runner_.Check(logits, job.length); !finite.ok()) {
    job.can_keep = false;
    job.result.stop = StopReason::kInterrupted;
    job.result.status = std::move(finite);
    return false;
  }
  prefixes_.TakeCaptures(job);
  const bool prompt_ends = std::exchange(job.in_prompt, false);
  if (prompt_ends) SaveOutput(engine_, job);
  if (prompt_ends || prefixes_.IsKeepDue(job)) prefixes_.Keep(job);
  return sampler_.Sample(job, job.length, logits).continues;
}

}  // namespace kvcache
