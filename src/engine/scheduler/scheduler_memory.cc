// What happens when cells or bytes run out.
#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/sequence_states.h"
#include "engine/scheduler/scheduler_impl.h"

namespace kvcache {
namespace {

constexpr std::int64_t kLeastEvicted = 64;  // tokens

// The bytes of a final state, which a prefix has besides its snapshot.
std::int64_t LastStateBytes(Engine& engine) {
  const SequenceStates* const states = engine.states();
  return states == nullptr ? 0 : states->hidden_size() * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

std::int64_t Scheduler::LeastBudget(Engine& engine) {
  const SequenceLength context[] = {{SequenceId{0}, engine.context()}};
  return engine.cache().ResidentBytes() + engine.WorkspaceBytes() +
         engine.cache().GrowthOf(context, kMostCapturesPerPass, 0) +
         (kMostCapturesPerPass + 1) * LastStateBytes(engine);
}

Status Scheduler::CheckBudget(Engine& engine, std::int64_t bytes) {
  if (bytes < 0) {
    return {StatusCode::kInvalidArgument,
            StrCat("the budget is ", bytes, " bytes; must be at least 0")};
  }
  const std::int64_t fixed = engine.cache().ResidentBytes() + engine.WorkspaceBytes();
  if (engine.options().releases_memory && bytes > 0 && bytes <= fixed) {
    return {StatusCode::kInvalidArgument,
            StrCat("the budget is ", bytes,
                   " bytes; the empty cache and the buffers of passes take ", fixed)};
  }
  return Status::Ok();
}

std::int64_t SchedulerImpl::SetBudget(std::int64_t bytes) {
  governor_.SetMost(bytes);
  KeepToBudget();
  stats_.held_bytes = HeldBytes();
  Publish();
  return stats_.held_bytes;
}

std::int64_t SchedulerImpl::HeldBytes() const {
  const Cache& cache = engine_.cache();
  const std::int64_t states = states_.last_state_bytes();
  if (!engine_.options().releases_memory) return cache.UsedBytes() + states;
  return cache.ResidentBytes() + engine_.WorkspaceBytes() + RowBytes(0) + states;
}

// The workspace has a row of logits for each sequence; drafts need more.
std::int64_t SchedulerImpl::RowBytes(std::size_t rows) const {
  const auto vocabulary = static_cast<std::size_t>(engine_.vocabulary_size());
  const auto most = static_cast<std::size_t>(std::max(engine_.options().max_sequences, 1));
  const std::size_t values = std::max(logits_.capacity(), rows * vocabulary);
  return static_cast<std::int64_t>((values - std::min(values, most * vocabulary)) * sizeof(float));
}

std::int64_t SchedulerImpl::PassGrowth(std::int64_t cells) {
  if (!engine_.options().releases_memory) return cells * bytes_per_token_;
  growing_.clear();
  int captures = 0;
  int rounds = 0;
  std::size_t rows = 0;
  for (const JobPtr& job : live_) {
    if (job->chunk == 0) continue;
    rounds += job->drafted > 0 ? 1 : 0;
    rows += 1 + static_cast<std::size_t>(job->drafted);
    growing_.push_back({job->sequence, job->chunk});
    for (const Position at : job->captures.lengths()) {
      captures += at > job->length && at <= job->length + job->chunk;
    }
  }
  std::sort(growing_.begin(), growing_.end(),
            [](const auto& a, const auto& b) { return Index(a.sequence) < Index(b.sequence); });
  const std::int64_t growth =
      engine_.cache().GrowthOf(growing_, captures, rounds) + RowBytes(rows) - RowBytes(0);
  if (growth == 0) return 0;
  return growth + (captures + std::ssize(growing_)) * LastStateBytes(engine_);
}

bool SchedulerImpl::HasRoom(std::int64_t cells) {
  if (engine_.cache().FreeCells() < cells) return false;
  if (!governor_.limits()) return true;
  const std::int64_t held = HeldBytes();
  const std::int64_t budget = governor_.Budget(held, Clock::now());
  if (budget == MemoryGovernor::kNoLimit) return true;
  // A pass that needs no more memory goes on above the budget, too.
  const std::int64_t growth = PassGrowth(cells);
  return growth == 0 || held + growth <= budget;
}

// An error leaves memory with the cache, which still counts it and uses it for other tokens.
bool SchedulerImpl::ReleaseMemory() {
  if (!engine_.options().releases_memory) return true;
  if (RowBytes(0) > 0) logits_ = {};
  return engine_.cache().ReleaseFreeMemory().ok();
}

void SchedulerImpl::KeepToBudget() {
  if (!engine_.options().releases_memory || !governor_.limits()) return;
  const auto over = [&] {
    const std::int64_t held = HeldBytes();
    return held > governor_.Budget(held, Clock::now());
  };
  // If memory cannot go back, it helps nobody to give up prefixes and sequences.
  if (!over() || !ReleaseMemory()) return;
  while (over()) {
    if (prefixes_->Evict(kLeastEvicted) < 0) {
      if (live_.empty()) return;
      ParkOrEnd(NextToPark());
    }
    if (!ReleaseMemory()) return;
  }
}

// The prefixes that are worth least go first. Then the job that started last gives its sequence up;
// the oldest one goes on in any case, so that there is always progress.
bool SchedulerImpl::MakeRoom() {
  while (true) {
    const auto needed = static_cast<std::int64_t>(tokens_.size());
    if (needed == 0) return false;
    if (!HasRoom(needed)) ReleaseMemory();
    if (AnyDrafts() && !HasRoom(needed)) {  // they are not worth a prefix
      TakeDraftsOut();
      continue;
    }
    while (!HasRoom(needed)) {
      const std::int64_t missing = needed - engine_.cache().FreeCells();
      if (prefixes_->Evict(std::max(missing, kLeastEvicted)) < 0) break;
      ReleaseMemory();
    }
    if (HasRoom(needed)) return true;
    if (AnyDrafts()) {
      TakeDraftsOut();
      continue;
    }
    if (live_.size() > 1) {
      ParkOrEnd(NextToPark());
    } else if (step_tokens_ > 1 && tokens_.size() > 1) {
      // The only job takes what there is.
      Job& job = *live_.front();
      const std::int64_t fits = std::min<std::int64_t>(engine_.cache().FreeCells(), job.chunk / 2);
      tokens_.clear();
      positions_.clear();
      sequences_.clear();
      job.chunk = 0;
      if (fits >= 1) {
        AddToBatch(job, static_cast<Position>(fits));
        continue;
      }
      if (!RestartAlone()) return false;
    } else if (!RestartAlone()) {
      return false;
    }
    Compose();
  }
}

// The states on the way of an open prefix cannot go. Without a prefix the request takes the least that
// it can: its own cells and its own state.
bool SchedulerImpl::RestartAlone() {
  Job& job = *live_.front();
  if (!engine_.options().releases_memory || !job.known || job.shifted()) {
    FinishAt(0, StopReason::kLength,
             {StatusCode::kCacheFull, "the cache is too small for the request"});
    return false;
  }
  ClosePrefix(job);
  job.captures.Cancel(engine_.cache(), job.sequence);
  (void)engine_.cache().Remove(job.sequence, 0, kEndOfSequence).ok();  // never fails
  while (prefixes_->Evict(kLeastEvicted) >= 0) {
  }
  ReleaseMemory();
  job.result.reuse.recomputed += job.length;
  job.length = 0;
  job.in_prompt = true;
  starved_ = true;  // it stays alone
  return true;
}

std::size_t SchedulerImpl::NextToPark() const {
  const auto first = [](const JobPtr& a, const JobPtr& b) {
    if (a->shifted() != b->shifted()) return b->shifted();  // its end is not for later
    return a->request.priority <= b->request.priority;
  };
  const auto next = std::min_element(live_.rbegin(), live_.rend(), first);
  return static_cast<std::size_t>(live_.rend() - next) - 1;
}

void SchedulerImpl::ParkOrEnd(std::size_t index) {
  if (live_[index]->shifted()) return FinishAt(index, StopReason::kLength);
  Park(index);
}

void SchedulerImpl::Park(std::size_t index) {
  ++live_[index]->result.reuse.parked;
  ++stats_.parked;
  starved_ = true;
  Requeue(index);
}

// What the job evaluated stays a prefix as long as there is room. `waiting_` has room for it.
void SchedulerImpl::Requeue(std::size_t index) {
  JobPtr job = std::move(live_[index]);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  LeaveSequence(*job);
  waiting_.insert(waiting_.begin(), std::move(job));
}

}  // namespace kvcache
