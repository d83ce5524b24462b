// Requests on their way in and out.
#include "kvcache_engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/sequence_states.h"
#include "engine/prefixes/token_keys.h"
#include "engine/scheduler/scheduler_impl.h"

namespace kvcache {
namespace {

// Tokens that are worth waiting for another request's prefill. It is never slower to wait: who does not
// wait computes the same tokens in the same passes.
constexpr Position kWorthWaiting = 16;

constexpr double kFreeMemoryShare = 0.5;

Position SharedLength(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<Position>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

double Milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
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
  auto scheduler =
      std::make_unique<SchedulerImpl>(engine, options, IsDivisible(engine.info().memory));
  KVCACHE_RETURN_IF_ERROR(scheduler->Open());
  return std::unique_ptr<Scheduler>(std::move(scheduler));
}

SchedulerImpl::SchedulerImpl(Engine& engine, const SchedulerOptions& options, bool divisible)
    : engine_(engine),
      options_(options),
      divisible_(divisible),
      step_tokens_(options.step_tokens > 0 ? options.step_tokens : engine.max_batch()),
      governor_(
          options.budget_bytes,
          options.free_memory_share.value_or(engine.options().releases_memory ? kFreeMemoryShare
                                                                              : 0.0),
          options.available_memory ? options.available_memory
                                   : [] { return kvcache::AvailableMemory(); }),
      states_(engine.cache(), engine.states()),
      pace_(options.step_ms / 1000.0, step_tokens_) {}

Status SchedulerImpl::Open() {
  const std::span<const LayerMemory> layers = engine_.info().memory;
  const DType k = engine_.options().k_type;
  const DType v = engine_.options().v_type;
  bytes_per_token_ = kvcache::BytesPerToken(layers, k, v);
  PrefixOptions prefix{.divisible = divisible_,
                       .recompute_bound = options_.recompute_bound,
                       .state_tokens = StateTokens(layers, k, v),
                       .finds_continuations = options_.look_up_drafts,
                       .on_event = options_.on_prefix_event};
  KVCACHE_ASSIGN_OR_RETURN(prefixes_, PrefixCache::Make(states_, std::move(prefix)));
  if (PrefixStore* const store = engine_.prefix_store(); store != nullptr) {
    loader_ = std::make_unique<StoreLoader>(*store);
  }
  const auto batch = static_cast<std::size_t>(engine_.max_batch());
  tokens_.reserve(batch);
  positions_.reserve(batch);
  sequences_.reserve(batch);
  const auto most = static_cast<std::size_t>(engine_.options().max_sequences);
  live_.reserve(most);
  prompts_.reserve(most);
  rows_.reserve(most);
  growing_.reserve(most);
  if (engine_.options().releases_memory) governor_.SetLeast(LeastBudget(engine_));
  return Status::Ok();
}

SchedulerImpl::~SchedulerImpl() {
  for (const JobPtr& job : live_) {
    engine_.cache().CancelCaptures(job->sequence);
    (void)engine_.cache().Remove(job->sequence, 0, kEndOfSequence).ok();  // never fails
  }
  prefixes_.reset();
}

double SchedulerImpl::Now() const {
  return SecondsSince(start_);
}

Result<RequestId> SchedulerImpl::Submit(ScheduledRequest request) {
  KVCACHE_RETURN_IF_ERROR(request.sampling.Check());
  const auto size = static_cast<Position>(request.prompt.size());
  if (request.prompt.empty()) return Status(StatusCode::kInvalidArgument, "the prompt is empty");
  if (size > engine_.context()) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("the prompt has ", size, " tokens, the context holds ", engine_.context()));
  }
  for (const std::int32_t token : request.prompt) {
    if (token >= 0 && token < engine_.info().embedding_rows) continue;
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("token ", token, " is not in the vocabulary of ", engine_.info().embedding_rows));
  }
  if (request.draft_tokens < -1 || request.draft_tokens > DraftRates::kMost) {
    return Status(StatusCode::kInvalidArgument, StrCat("draft tokens are ", request.draft_tokens,
                                                       "; must be from 0 to ", DraftRates::kMost));
  }
  if (request.draft_branches < 1) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("draft branches are ", request.draft_branches, "; must be at least 1"));
  }
  Position before = 0;
  for (const Position point : request.restore_points) {
    if (point <= before || point > size) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("a restore point at ", point, " after one at ", before,
                           "; they must ascend within the prompt of ", size));
    }
    before = point;
  }
  Sampler sampler(request.sampling);
  JobPtr job(new Job{
      .submitted = Clock::now(), .request = std::move(request), .sampler = std::move(sampler)});
  if (job->request.drafter != nullptr) {
    job->drafts.reset(new JobDrafts{.drafter = std::move(job->request.drafter),
                                    .fixed = job->request.draft_tokens,
                                    .branches = job->request.draft_branches});
  }
  if (engine_.has_encoder()) {
    job->tokens = {engine_.info().decoder_start};
  } else {
    job->tokens = job->request.prompt;
  }
  job->result.reuse.prompt = size;
  const std::lock_guard lock(mutex_);
  job->id = RequestId{next_id_++};
  job->result.id = job->id;
  const RequestId id = job->id;
  inbox_.push_back(std::move(job));
  ++unfinished_;
  wake_.notify_all();
  return id;
}

void SchedulerImpl::Cancel(RequestId request) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(request);
  wake_.notify_all();
}

void SchedulerImpl::Wake() {
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

std::size_t SchedulerImpl::waiting() const {
  const std::lock_guard lock(mutex_);
  return unfinished_ - live_.size();
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
  for (const JobPtr& job : waiting_) add(*job, false);
  return states;
}

Status SchedulerImpl::Run(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    KVCACHE_ASSIGN_OR_RETURN(const bool more, Step());
    if (more) continue;
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] {
      return !inbox_.empty() || !cancelled_.empty() || stop.load(std::memory_order_relaxed);
    });
  }
  return Status::Ok();
}

Result<PrefixMatch> SchedulerImpl::Probe(std::span<const std::int32_t> prompt,
                                         std::uint64_t salt) const {
  try {
    return prefixes_->Probe({.keys = KeysOf(prompt), .salt = salt});
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for the keys of a prompt");
  }
}

// The requests that are new and cancelled since the last step. A queue is by priority, then by
// arrival; a parked request comes back to the place that it had.
void SchedulerImpl::TakeInbox() {
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    try {
      waiting_.reserve(waiting_.size() + live_.size() + inbox_.size());
      std::move(inbox_.begin(), inbox_.end(), std::back_inserter(waiting_));
      inbox_.clear();
    } catch (const std::bad_alloc&) {
      // They wait for the next step.
    }
    cancelled.swap(cancelled_);
  }
  for (const RequestId id : cancelled) {
    const auto has_id = [&](const JobPtr& job) { return job->id == id; };
    if (const auto at = std::find_if(live_.begin(), live_.end(), has_id); at != live_.end()) {
      FinishAt(static_cast<std::size_t>(at - live_.begin()), StopReason::kInterrupted);
    } else if (const auto w = std::find_if(waiting_.begin(), waiting_.end(), has_id);
               w != waiting_.end()) {
      const JobPtr job = std::move(*w);
      waiting_.erase(w);
      Finish(*job, StopReason::kInterrupted);
    }
  }
  std::stable_sort(waiting_.begin(), waiting_.end(), [](const JobPtr& a, const JobPtr& b) {
    return std::pair(b->request.priority, a->id) < std::pair(a->request.priority, b->id);
  });
}

std::optional<SequenceId> SchedulerImpl::FreeSequence() const {
  for (int i = 0; i < engine_.options().max_sequences; ++i) {
    const bool taken = std::any_of(live_.begin(), live_.end(),
                                   [&](const JobPtr& job) { return Index(job->sequence) == i; });
    if (!taken) return SequenceId{i};
  }
  return std::nullopt;
}

void SchedulerImpl::Admit() {
  for (std::size_t i = 0; i < waiting_.size();) {
    if (starved_ && !live_.empty()) return;
    const auto sequence = FreeSequence();
    if (!sequence) return;
    if (ShouldWaitForOthers(*waiting_[i])) {
      ++i;
      continue;
    }
    JobPtr job = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!Start(std::move(job), *sequence)) return;
  }
}

bool SchedulerImpl::ShouldWaitForOthers(const Job& job) {
  Position most = 0;
  Job* reader = nullptr;  // of a sequence that can be cut: whoever has read most of what they share
  for (const JobPtr& other : live_) {
    if (!other->in_prompt || !other->known || other->request.salt != job.request.salt) continue;
    const Position shared = SharedLength(other->tokens, job.tokens);
    if (divisible_) {
      const bool further = reader != nullptr && shared == most && other->length > reader->length;
      if (shared > most || further) reader = other.get();
      most = std::max(most, shared);
      continue;
    }
    for (const Position at : other->captures.lengths()) {
      if (at <= shared) most = std::max(most, at);
    }
  }
  if (most < kWorthWaiting) return false;
  const auto match = Probe(job.tokens, job.request.salt);
  if (!match.ok() || most <= match->resumed + kWorthWaiting) return false;
  if (reader == nullptr || reader->length < most) return true;
  ShareWhatWasRead(*reader);
  return false;
}

// The rest of a long prompt is not worth waiting for.
void SchedulerImpl::ShareWhatWasRead(Job& reader) {
  auto state = states_.Take(reader.sequence, reader.length);
  if (state.ok()) (void)prefixes_->Extend(reader.prefix, reader.length, *state).ok();
}

Result<PrefixPlan> SchedulerImpl::BeginPrefix(const Job& job) {
  try {
    return prefixes_->Begin({.keys = KeysOf(job.tokens),
                             .salt = job.request.salt,
                             .restore_points = job.request.restore_points,
                             .retention = job.request.retention},
                            Now());
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for the keys of a prompt");
  }
}

bool SchedulerImpl::AppendKeys(Job& job) {
  if (!job.known) return false;
  const auto known = static_cast<std::size_t>(job.known_tokens);
  if (known == job.tokens.size()) return true;
  try {
    const auto keys = KeysOf(std::span(job.tokens).subspan(known));
    if (!prefixes_->Append(job.prefix, keys).ok()) return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  job.known_tokens = static_cast<Position>(job.tokens.size());
  return true;
}

void SchedulerImpl::ClosePrefix(Job& job) {
  (void)AppendKeys(job);
  if (std::exchange(job.known, false)) prefixes_->Close(job.prefix, Now());
}

void SchedulerImpl::SayStarted(const Job& job) {
  if (job.request.on_started) job.request.on_started(job.result.reuse);
}

bool SchedulerImpl::Start(JobPtr job, SequenceId sequence) {
  if (engine_.has_encoder()) return StartWithEncoder(std::move(job), sequence);
  auto plan = BeginPrefix(*job);
  if (!plan.ok()) {
    Finish(*job, StopReason::kInterrupted, plan.status());
    return false;
  }
  job->sequence = sequence;
  if (engine_.states() != nullptr) engine_.states()->Forget(sequence);
  job->prefix = plan->request;
  job->known = true;
  job->known_tokens = static_cast<Position>(job->tokens.size());
  job->in_prompt = true;
  job->length = 0;
  GiveDrafter(*job);
  const Position planned = plan->resumed;
  Restore(*job, *plan);
  const bool first = !std::exchange(job->started, true);
  if (first) {
    ReuseReport& reuse = job->result.reuse;
    reuse.matched = plan->matched;
    reuse.restored = job->length;
    reuse.computed = reuse.prompt - job->length;
    reuse.missed = std::move(plan->missed);
    reuse.difference = plan->difference;
    const Position not_restored = planned - job->length;
    if (not_restored > 0) {
      reuse.missed.insert(reuse.missed.begin(), {not_restored, MissReason::kRestoreFailed});
    }
  } else {
    job->result.reuse.recomputed += std::max<Position>(0, job->pending() - 1);
  }
  live_.push_back(std::move(job));
  if (first) SayStarted(*live_.back());
  return true;
}

void SchedulerImpl::Restore(Job& job, PrefixPlan& plan) {
  const Clock::time_point start = Clock::now();
  if (plan.resumed > 0) {
    if (RestoreState(job, plan).ok()) {
      job.length = plan.resumed;
    } else {
      (void)engine_.cache().Remove(job.sequence, 0, kEndOfSequence).ok();  // never fails
      plan.captures = prefixes_->NotRestored(plan.request);
    }
    stats_.restored_tokens += job.length;
    job.result.reuse.restore_ms += Milliseconds(Clock::now() - start);
  }
  BeginLoad(job, std::move(plan.captures));
}

Status SchedulerImpl::RestoreState(const Job& job, PrefixPlan& plan) {
  while (true) {
    Status restored = states_.Restore(plan.state, job.sequence, plan.resumed);
    if (restored.code() != StatusCode::kCacheFull || prefixes_->Evict(plan.resumed) < 0) {
      return restored;
    }
    const auto match = Probe(job.tokens, job.request.salt);
    if (!match.ok() || match->resumed == 0) return restored;
    plan.state = match->state;
    plan.resumed = match->resumed;
  }
}

void SchedulerImpl::TakeCaptures(Job& job) {
  if (!job.known) return;
  job.captures.Take(engine_.cache(), job.sequence, job.length, states_, *prefixes_, job.prefix,
                    [&](const Snapshot& state, Position length) { SaveState(job, state, length); });
  SavePieces(job, PrefixStore::Extent::kWholeChunks);
}

void SchedulerImpl::Keep(Job& job) {
  if (job.length < 1 || !AppendKeys(job)) return;
  auto state = states_.Take(job.sequence, job.length);
  if (!state.ok()) return;
  SaveState(job, *states_.Find(*state), job.length);
  SavePieces(job, PrefixStore::Extent::kAll);
  (void)prefixes_->Extend(job.prefix, job.length, *state).ok();
}

void SchedulerImpl::LeaveSequence(Job& job) {
  CancelLoad(job);
  if (job.sound) {
    TakeCaptures(job);
    Keep(job);
  }
  ClosePrefix(job);
  job.captures.Cancel(engine_.cache(), job.sequence);
  (void)engine_.cache().Remove(job.sequence, 0, kEndOfSequence).ok();  // never fails
  job.length = 0;
}

void SchedulerImpl::Finish(Job& job, StopReason stop, Status status) {
  job.result.stop = stop;
  job.result.status = std::move(status);
  job.result.total_ms = Milliseconds(Clock::now() - job.submitted);
  {
    const std::lock_guard lock(mutex_);
    --unfinished_;
  }
  if (job.request.on_done) job.request.on_done(job.result);
}

void SchedulerImpl::FinishAt(std::size_t index, StopReason stop, Status status) {
  const JobPtr job = std::move(live_[index]);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  LeaveSequence(*job);
  starved_ = false;
  Finish(*job, stop, std::move(status));
}

}  // namespace kvcache
