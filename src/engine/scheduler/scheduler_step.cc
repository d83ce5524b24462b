// One pass: which tokens it has, and what they become.
#include <algorithm>
#include <utility>

#include "base/step_parts.h"
#include "engine/engine_impl.h"
#include "engine/scheduler/context_shift.h"
#include "engine/scheduler/job_prefetch.h"
#include "engine/scheduler/pass/step_clock.h"
#include "engine/scheduler/scheduler_impl.h"

namespace kvcache {
namespace {

constexpr int kMaxFailures = 2;

}  // namespace

namespace {

// Holds a turn while a step runs.
class Turn {
 public:
  explicit Turn(StepTurns* turns) : turns_(turns) {
    if (turns_ != nullptr) turns_->BeginStep();
  }
  ~Turn() {
    if (turns_ != nullptr) turns_->EndStep();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  StepTurns* const turns_;
};

}  // namespace

Result<bool> SchedulerImpl::Step() {
  const StepScope scope(StepPart::kRequests);
  {
    // Without requests, a step computes nothing.
    const Turn turn(live_.empty() && waiting() == 0 ? nullptr : options_.turns);
    RunStep();
  }
  Publish();
  return !live_.empty() || waiting() > 0;
}

void SchedulerImpl::RunStep() {
  const AddSeconds time(options_.clock, stats_.step_seconds);
  PrefetchForChoice(live_);
  EndCancelled(queue_.Update(live_.size()));
  Admit();
  EndInterrupted();
  MakeContexts();
  loads_.Advance(live_);
  RunTower();
  DraftProposals::Drop(live_);
  if (round_.works()) proposals_.Propose(live_, composer_);
  bool fits = false;
  {
    const StepScope choice(StepPart::kChoice);
    composer_.Compose(live_, pass_);
    if (pass_.empty()) loads_.Wait(live_);
    fits = !pass_.empty() && EnsureCapacity();
  }
  if (fits) RunPass();
  stats_.max_held_bytes = std::max(stats_.max_held_bytes, memory_.HeldBytes());
  KeepToBudget();
  LimitHostMemory();
  stats_.held_bytes = memory_.HeldBytes();
}

void SchedulerImpl::EndInterrupted() {
  for (std::size_t i = queue_.jobs().size(); i-- > 0;) {
    if (queue_.jobs()[i]->is_interrupted()) Finish(*queue_.Take(i), StopReason::kInterrupted);
  }
  for (std::size_t i = live_.size(); i-- > 0;) {
    if (live_[i]->in_prompt && live_[i]->is_interrupted()) FinishAt(i, StopReason::kInterrupted);
  }
}

void SchedulerImpl::MakeContexts() {
  for (std::size_t i = 0; i < live_.size();) {
    const auto has_context = MakeContext(engine_, prefixes_, *live_[i]);
    if (has_context.ok() && *has_context) {
      ++i;
    } else if (has_context.ok()) {
      FinishAt(i, StopReason::kLength);
    } else {
      FinishAt(i, StopReason::kInterrupted, has_context.status());
    }
  }
}

void SchedulerImpl::RunTower() {
  const Job* const failed = towers_.Advance(live_);
  if (failed == nullptr) return;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    if (live_[i].get() == failed)
      return FinishAt(i, StopReason::kInterrupted, failed->result.status);
  }
}

void SchedulerImpl::RunPass() {
  round_.Begin(pass_);
  Status status = runner_.Run(pass_);
  if (!status.ok() && round_.GiveUp(status, pass_)) status = runner_.Run(pass_);
  // Prefixes that were to go to host memory find no room there.
  while (status.code() == StatusCode::kCacheFull && options_.one_at_a_time &&
         prefixes_.cache().Evict(std::ssize(pass_.tokens)) >= 0) {
    status = runner_.Run(pass_);
  }
  ++stats_.passes;
  if (!status.ok()) return PassFailed(status);
  stats_.evaluated_tokens += std::ssize(pass_.tokens);
  {
    const AddSeconds time(options_.clock, stats_.sampling_seconds);
    round_.Verify(pass_, runner_, sampler_);
  }
  round_.Keep(pass_, runner_);
  LearnFromPass();
  AfterPass();
}

void SchedulerImpl::LearnFromPass() {
  PrefillWork work;
  for (const PassRows& of : pass_.rows) {
    if (of.tokens > 0 && of.reads_prompt) work.Add(of.job->length, of.tokens);
  }
  stats_.prompt_tokens += work.tokens();
  const double seconds = runner_.seconds();
  if (pass_.encoding != nullptr) {
    loads_.CountText(pass_.encoding->result.reuse.prompt, seconds);
    return;
  }
  proposals_.CountPass(static_cast<int>(pass_.tokens.size()), work.tokens(), seconds);
  composer_.CountPass(pass_, work, seconds);
}

// The rows are those of the live requests, in their order, without the ones that have ended.
void SchedulerImpl::AfterPass() {
  const StepScope scope(StepPart::kDelivery);
  const AddSeconds time(options_.clock, stats_.sampling_seconds);
  std::size_t index = 0;
  for (std::size_t i = 0; i < pass_.rows.size(); ++i) {
    const PassRows& of = pass_.rows[i];
    // A row of logits takes longer to look at than memory to answer.
    if (i + 2 < pass_.rows.size()) PrefetchForDelivery(*pass_.rows[i + 2].job);
    if (i + 1 < pass_.rows.size()) PrefetchTexts(*pass_.rows[i + 1].job);
    if (of.tokens == 0 || results_.Take(of)) {
      ++index;
    } else {
      FinishAt(index, of.job->result.stop, of.job->result.status);
    }
  }
}

// A request tries again, from what the prefixes still have, and fails the second time at the same place.
void SchedulerImpl::PassFailed(const Status& status) {
  for (std::size_t i = pass_.rows.size(); i-- > 0;) {
    if (pass_.rows[i].tokens == 0) continue;
    Job& job = *live_[i];
    Cache& cache = engine_.cache();
    const auto kept = cache.PrepareRestore(job.sequence, job.length);
    job.length = kept.ok() ? std::min(*kept, job.length) : 0;
    if (!cache.Remove(job.sequence, job.length, kEndOfSequence).ok()) job.length = 0;
    if (status.code() == StatusCode::kCancelled && job.is_interrupted()) {
      FinishAt(i, StopReason::kInterrupted);
    } else if (++job.failures >= kMaxFailures || job.shifted()) {
      FinishAt(i, StopReason::kInterrupted, status);
    } else {
      Requeue(i);
    }
  }
}

}  // namespace kvcache
