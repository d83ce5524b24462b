#include "engine/scheduler/job_starter.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/seconds_since.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"

namespace kvcache {
namespace {

// Says where the tokens of a prompt come from, once its request has restored what memory had.
void ReportReuse(Job& job, PrefixPlan& plan, Position planned) {
  ReuseReport& reuse = job.result.reuse;
  reuse.matched = plan.matched;
  reuse.restored = job.length;
  reuse.computed = reuse.prompt - job.length;
  reuse.missed = std::move(plan.missed);
  reuse.difference = plan.difference;
  const Position not_restored = planned - job.length;
  if (not_restored > 0) {
    reuse.missed.insert(reuse.missed.begin(), {not_restored, MissReason::kRestoreFailed});
  }
}

}  // namespace

Status JobStarter::Start(Job& job, SequenceId sequence) {
  job.sequence = sequence;
  job.in_prompt = true;
  job.length = 0;
  if (engine_.has_encoder()) {
    StartText(job);
    return Status::Ok();
  }
  KVCACHE_RETURN_IF_ERROR(engine_.SetAdapters(sequence, job.request.adapters));
  KVCACHE_ASSIGN_OR_RETURN(PrefixPlan plan, prefixes_.Begin(job));
  if (engine_.states() != nullptr) engine_.states()->Forget(sequence);
  proposals_.GiveDrafter(job);
  const Position planned = plan.resumed;
  Restore(job, plan);
  if (!std::exchange(job.started, true)) {
    ReportReuse(job, plan, planned);
  } else {
    job.result.reuse.recomputed += std::max<Position>(0, job.pending() - 1);
  }
  return Status::Ok();
}

// The output of an encoder depends on all of the text, so there are no prefixes: the store has the output of exactly
// this text, or nothing.
void JobStarter::StartText(Job& job) {
  loads_.BeginText(job);
  ReuseReport& reuse = job.result.reuse;
  if (!std::exchange(job.started, true)) {
    reuse.computed = reuse.prompt;
  } else {
    reuse.recomputed += reuse.prompt + job.pending() - 1;
  }
}

void JobStarter::Restore(Job& job, PrefixPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  if (plan.resumed > 0) {
    prefixes_.Restore(job, plan);
    stats_.restored_tokens += job.length;
    job.result.reuse.restore_ms += MillisecondsSince(start);
  }
  loads_.Begin(job, std::move(plan.captures));
}

}  // namespace kvcache
