// Requests on their way in and out.
#include "kvcache_engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/scheduler/request_calls.h"
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

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::Make(Engine& engine,
                                                   const SchedulerOptions& options) {
  if (options.step_tokens < 0 || options.step_tokens > engine.max_batch()) {
    return InvalidArgument(StrCat("a step has ", options.step_tokens, " tokens; must be in [0, ",
                                  engine.max_batch(), "]"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckBudget(engine, options.budget_bytes));
  if (options.step_ms < 1 || options.step_ms > SchedulerOptions::kMaxStepMs) {
    return InvalidArgument(StrCat("a step's prompts add ", options.step_ms, " ms; must be in [1, ",
                                  SchedulerOptions::kMaxStepMs, "]"));
  }
  const double share = options.free_memory_share.value_or(0.0);
  if (!(share >= 0.0 && share <= 1.0)) {
    return InvalidArgument(StrCat("the share of free memory is ", share, "; must be in [0, 1]"));
  }
  auto scheduler = std::make_unique<SchedulerImpl>(engine, options);
  KVCACHE_RETURN_IF_ERROR(scheduler->Open());
  return std::unique_ptr<Scheduler>(std::move(scheduler));
}

SchedulerImpl::SchedulerImpl(Engine& engine, const SchedulerOptions& options)
    : engine_(engine),
      options_(options),
      queue_(engine, StepTokens(engine, options)),
      prefixes_(engine, options_),
      runner_(engine, options_.clock, stats_.pass_seconds),
      memory_(engine, options_, prefixes_.states(), runner_),
      loads_(engine, options_, prefixes_, memory_, stats_),
      towers_(engine, options_.clock, options.step_ms / 1000.0, stats_),
      composer_(engine, StepTokens(engine, options), options.step_ms / 1000.0),
      sampler_(engine),
      proposals_(engine, options_, prefixes_),
      starter_(engine, prefixes_, loads_, proposals_, stats_),
      round_(engine),
      results_(engine, prefixes_, runner_, sampler_) {
  const auto sequences = static_cast<std::size_t>(std::max(engine.options().max_sequences, 1));
  pass_.Reserve(static_cast<std::size_t>(engine.max_batch()), sequences);
  live_.reserve(sequences);
}

Status SchedulerImpl::Open() {
  KVCACHE_RETURN_IF_ERROR(prefixes_.Open());
  Publish();  // Stats may be asked for before the first step
  return Status::Ok();
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
    JobPtr job = queue_.Take(i);
    const bool is_first = !job->started;
    prefixes_.ShareLive(*job, live_);
    if (const Status started = starter_.Start(*job, *sequence); !started.ok()) {
      return Finish(*job, StopReason::kInterrupted, started);
    }
    live_.push_back(std::move(job));
    Job& added = *live_.back();
    const bool is_told = is_first && added.request.on_started;
    if (is_told && !CallOfRequest(added, [&] { added.request.on_started(added.result.reuse); })) {
      FinishAt(live_.size() - 1, StopReason::kInterrupted, added.result.status);
    }
  }
}

JobPtr SchedulerImpl::LeaveSequence(std::size_t index) {
  JobPtr job = std::move(live_[index]);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  loads_.Cancel(*job);
  prefixes_.Leave(*job);
  if (job->pictures != nullptr) job->pictures->rows = nullptr;  // kept, or computed again
  return job;
}

void SchedulerImpl::Finish(Job& job, StopReason stop, Status status) {
  job.result.stop = stop;
  job.result.status = std::move(status);
  job.result.total_ms = MillisecondsSince(job.submitted);
  queue_.CountEnd();
  // The request has ended: an exception has nobody left to reach.
  if (job.request.on_done) CallOfRequest(job, [&] { job.request.on_done(job.result); });
}

void SchedulerImpl::FinishAt(std::size_t index, StopReason stop, Status status) {
  live_[index]->result.evaluated = live_[index]->length;
  const JobPtr job = LeaveSequence(index);
  starved_ = false;
  Finish(*job, stop, std::move(status));
}

}  // namespace kvcache
