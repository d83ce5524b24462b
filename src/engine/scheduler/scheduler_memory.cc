// What happens when cells or bytes run out.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/scheduler/scheduler_impl.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMinEvicted = 64;  // tokens
constexpr std::int64_t kContextsInHostMemory = 3;

// Returns the request that gives its sequence up first: the last that started.
std::size_t NextToPark(std::span<const JobPtr> live) {
  // The end of a shifted context is not for later.
  auto next =
      std::find_if(live.rbegin(), live.rend(), [](const JobPtr& job) { return !job->shifted(); });
  if (next == live.rend()) next = live.rbegin();
  return static_cast<std::size_t>(live.rend() - next) - 1;
}

}  // namespace

std::int64_t SchedulerImpl::SetBudget(std::int64_t bytes) {
  memory_.SetMax(bytes);
  KeepToBudget();
  stats_.held_bytes = memory_.HeldBytes();
  Publish();
  return stats_.held_bytes;
}

void SchedulerImpl::KeepToBudget() {
  // If memory cannot go back, it helps nobody to give up prefixes and sequences.
  if (!memory_.IsOver() || !memory_.Release()) return;
  while (memory_.IsOver()) {
    if (prefixes_.cache().Evict(kMinEvicted) < 0) {
      if (live_.empty()) return;
      ParkOrEnd(NextToPark(live_));
    }
    if (!memory_.Release()) return;
  }
}

void SchedulerImpl::LimitHostMemory() {
  if (!options_.one_at_a_time || !live_.empty()) return;
  PrefixCache& prefixes = prefixes_.cache();
  const std::int64_t max = kContextsInHostMemory * engine_.context();
  while (prefixes.Stats().tokens > max && prefixes.Evict(prefixes.Stats().tokens - max) >= 0) {
  }
}

// The prefixes that are worth least go first. Then the request that started last gives its sequence up;
// the oldest one continues in any case, so that there is always progress.
bool SchedulerImpl::EnsureCapacity() {
  while (!pass_.empty()) {
    const std::int64_t needed = std::ssize(pass_.tokens);
    const auto has_room = [&] { return memory_.HasRoom(needed, pass_.rows); };
    if (!has_room()) memory_.Release();
    if (has_room()) return true;
    if (pass_.has_drafts()) {  // they are not worth a prefix
      pass_.RemoveDrafts();
      continue;
    }
    while (!has_room()) {
      const std::int64_t missing = needed - engine_.cache().memory()->FreeCells();
      if (prefixes_.cache().Evict(std::max(missing, kMinEvicted)) < 0) break;
      memory_.Release();
    }
    if (has_room()) return true;
    if (live_.size() > 1) {
      ParkOrEnd(NextToPark(live_));
      composer_.Compose(live_, pass_);
    } else if (!ComposeAlone()) {
      return false;
    }
  }
  return false;
}

// The only request takes what there is.
bool SchedulerImpl::ComposeAlone() {
  if (pass_.tokens.size() > 1) {
    PassRows& of = pass_.rows.front();
    const std::int64_t free = engine_.cache().memory()->FreeCells();
    const auto fits =
        FitWhole(*of.job, static_cast<Position>(std::min<std::int64_t>(free, of.tokens / 2)));
    pass_.RemoveTokens();
    of.tokens = 0;
    if (fits >= 1) {
      pass_.Add(of, fits);
      return true;
    }
  }
  if (!RestartAlone()) return false;
  composer_.Compose(live_, pass_);
  return true;
}

// The states on the way of an open prefix cannot go. Without a prefix the request takes the least that
// it can: its own cells and its own state.
bool SchedulerImpl::RestartAlone() {
  Job& job = *live_.front();
  if (!engine_.options().releases_memory || !job.has_prefix || job.shifted()) {
    FinishAt(0, StopReason::kLength,
             {StatusCode::kCacheFull, "the cache is too small for the request"});
    return false;
  }
  job.result.reuse.recomputed += job.length;
  prefixes_.Close(job);
  prefixes_.Empty(job);
  while (prefixes_.cache().Evict(kMinEvicted) >= 0) {
  }
  memory_.Release();
  job.in_prompt = true;
  starved_ = true;  // it stays alone
  return true;
}

// What the request evaluated stays a prefix as long as there is room.
void SchedulerImpl::ParkOrEnd(std::size_t index) {
  if (live_[index]->shifted()) return FinishAt(index, StopReason::kLength);
  ++live_[index]->result.reuse.parked;
  ++stats_.parked;
  starved_ = true;
  Requeue(index);
}

void SchedulerImpl::Requeue(std::size_t index) {
  queue_.PutBack(LeaveSequence(index));
}

}  // namespace kvcache
