// Requests on their way in and out.
#include "kvcache_engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/sequence_states.h"
#include "engine/scheduler/scheduler_impl.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

int StepTokens(const Engine& engine, const SchedulerOptions& options) {
  return options.step_tokens > 0 ? options.step_tokens : engine.max_batch();
}

std::optional<SequenceId> FreeSequence(const Engine& engine, std::span<const JobPtr> live) {
  for (int i = 0; i < engine.options().max_sequences; ++i) {
    const bool taken = std::any_of(live.begin(), live.end(),
                                   [&](const JobPtr& job) { return Index(job->sequence) == i; });
    if (!taken) return SequenceId{i};
  }
  return std::nullopt;
}

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

Result<std::unique_ptr<Scheduler>> Scheduler::Make(Engine& engine,
                                                   const SchedulerOptions& options) {
  if (options.step_tokens < 0 || options.step_tokens > engine.max_batch()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a step has ", options.step_tokens, " tokens; must be in [0, ",
                         engine.max_batch(), "]"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckBudget(engine, options.budget_bytes));
  if (options.step_ms < 1 || options.step_ms > SchedulerOptions::kMostStepMs) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a step's prompts add ", options.step_ms, " ms; must be in [1, ",
                         SchedulerOptions::kMostStepMs, "]"));
  }
  const double share = options.free_memory_share.value_or(0.0);
  if (!(share >= 0.0 && share <= 1.0)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("the share of free memory is ", share, "; must be in [0, 1]"));
  }
  auto scheduler = std::make_unique<SchedulerImpl>(engine, options);
  KVCACHE_RETURN_IF_ERROR(scheduler->Open());
  return std::unique_ptr<Scheduler>(std::move(scheduler));
}

SchedulerImpl::SchedulerImpl(Engine& engine, const SchedulerOptions& options)
    : engine_(engine),
      options_(options),
      queue_(engine),
      prefixes_(engine, options_),
      runner_(engine, options_.clock, stats_.pass_seconds),
      memory_(engine, options_, prefixes_.states(), runner_),
      loads_(engine, prefixes_, memory_, stats_),
      composer_(engine, StepTokens(engine, options), options.step_ms / 1000.0),
      sampler_(engine, options_.clock, stats_.sampling_seconds),
      proposals_(engine, options_, prefixes_),
      round_(engine) {
  const auto sequences = static_cast<std::size_t>(std::max(engine.options().max_sequences, 1));
  pass_.Reserve(static_cast<std::size_t>(engine.max_batch()), sequences);
  live_.reserve(sequences);
}

Status SchedulerImpl::Open() {
  return prefixes_.Open();
}

SchedulerImpl::~SchedulerImpl() {
  for (const JobPtr& job : live_) {
    engine_.cache().snapshots()->CancelCaptures(job->sequence);
    (void)engine_.cache().Remove(job->sequence, 0, kEndOfSequence).ok();  // never fails
  }
}

std::vector<RequestState> SchedulerImpl::Requests() const {
  std::vector<RequestState> states;
  const auto add = [&](const Job& job, bool live) {
    states.push_back({.id = job.id,
                      .sequence = live ? Index(job.sequence) : -1,
                      .parked = !live && job.started,
                      .in_prompt = job.in_prompt,
                      .prompt = job.result.reuse.prompt,
                      .restored = job.result.reuse.restored,
                      .generated = static_cast<Position>(job.result.tokens.size()),
                      .evaluated = job.length,
                      .salt = job.request.salt});
  };
  for (const JobPtr& job : live_) add(*job, true);
  for (const JobPtr& job : queue_.jobs()) add(*job, false);
  return states;
}

Status SchedulerImpl::Run(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    KVCACHE_ASSIGN_OR_RETURN(const bool more, Step());
    if (!more) queue_.Wait(stop);
  }
  return Status::Ok();
}

SchedulerStats SchedulerImpl::Stats() const {
  const std::lock_guard lock(published_mutex_);
  return published_;
}

void SchedulerImpl::Publish() {
  const PrefixStats prefixes = prefixes_.cache().Stats();
  SchedulerStats stats = stats_;
  stats.budget_bytes = memory_.Bytes(stats_.held_bytes);
  stats.live = std::ssize(live_);
  stats.waiting = static_cast<std::int64_t>(queue_.size());
  stats.prefix_tokens = prefixes.tokens;
  stats.prefix_states = prefixes.states;
  stats.evicted_tokens = prefixes.evicted_tokens;
  const std::lock_guard lock(published_mutex_);
  published_ = stats;
}

void SchedulerImpl::EndCancelled(std::span<const RequestId> cancelled) {
  for (const RequestId id : cancelled) {
    const auto at =
        std::find_if(live_.begin(), live_.end(), [&](const JobPtr& job) { return job->id == id; });
    if (at != live_.end()) {
      FinishAt(static_cast<std::size_t>(at - live_.begin()), StopReason::kInterrupted);
    } else if (const JobPtr job = queue_.Take(id); job != nullptr) {
      Finish(*job, StopReason::kInterrupted);
    }
  }
}

void SchedulerImpl::Admit() {
  for (std::size_t i = 0; i < queue_.jobs().size();) {
    if (starved_ && !live_.empty()) return;
    const auto sequence = FreeSequence(engine_, live_);
    if (!sequence) return;
    if (prefixes_.ShouldWait(*queue_.jobs()[i], live_)) {
      ++i;
      continue;
    }
    if (!Start(queue_.Take(i), *sequence)) return;
  }
}

bool SchedulerImpl::Start(JobPtr job, SequenceId sequence) {
  if (engine_.has_encoder()) return StartWithEncoder(std::move(job), sequence);
  prefixes_.ShareLive(*job, live_);
  auto plan = prefixes_.Begin(*job);
  if (!plan.ok()) {
    Finish(*job, StopReason::kInterrupted, plan.status());
    return false;
  }
  job->sequence = sequence;
  if (engine_.states() != nullptr) engine_.states()->Forget(sequence);
  job->in_prompt = true;
  job->length = 0;
  proposals_.GiveDrafter(*job);
  const Position planned = plan->resumed;
  Restore(*job, *plan);
  const bool first = !std::exchange(job->started, true);
  if (first) {
    ReportReuse(*job, *plan, planned);
  } else {
    job->result.reuse.recomputed += std::max<Position>(0, job->pending() - 1);
  }
  AddStarted(std::move(job), first);
  return true;
}

// The output of an encoder depends on all of the text, so there are no prefixes: the store has the output of exactly
// this text, or nothing.
bool SchedulerImpl::StartWithEncoder(JobPtr job, SequenceId sequence) {
  job->sequence = sequence;
  job->in_prompt = true;
  job->length = 0;
  loads_.BeginText(*job);
  ReuseReport& reuse = job->result.reuse;
  const bool first = !std::exchange(job->started, true);
  if (first) {
    reuse.computed = reuse.prompt;
  } else {
    reuse.recomputed += reuse.prompt + job->pending() - 1;
  }
  AddStarted(std::move(job), first);
  return true;
}

void SchedulerImpl::AddStarted(JobPtr job, bool is_first) {
  live_.push_back(std::move(job));
  const Job& added = *live_.back();
  if (is_first && added.request.on_started) added.request.on_started(added.result.reuse);
}

void SchedulerImpl::Restore(Job& job, PrefixPlan& plan) {
  const Clock::time_point start = Clock::now();
  if (plan.resumed > 0) {
    prefixes_.Restore(job, plan);
    stats_.restored_tokens += job.length;
    job.result.reuse.restore_ms += MillisecondsSince(start);
  }
  loads_.Begin(job, std::move(plan.captures));
}

JobPtr SchedulerImpl::LeaveSequence(std::size_t index) {
  JobPtr job = std::move(live_[index]);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  loads_.Cancel(*job);
  prefixes_.Leave(*job);
  return job;
}

void SchedulerImpl::Finish(Job& job, StopReason stop, Status status) {
  job.result.stop = stop;
  job.result.status = std::move(status);
  job.result.total_ms = MillisecondsSince(job.submitted);
  queue_.CountEnd();
  if (job.request.on_done) job.request.on_done(job.result);
}

void SchedulerImpl::FinishAt(std::size_t index, StopReason stop, Status status) {
  const JobPtr job = LeaveSequence(index);
  starved_ = false;
  Finish(*job, stop, std::move(status));
}

}  // namespace kvcache
