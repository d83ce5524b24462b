// What happens when cells or bytes run out.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/scheduler_impl.h"

namespace kvcache {

bool SchedulerImpl::HasRoom(std::int64_t cells) const {
  const Cache& cache = engine_.cache();
  if (cache.FreeCells() < cells) return false;
  return options_.budget_bytes == 0 ||
         cache.UsedBytes() + cells * bytes_per_token_ <= options_.budget_bytes;
}

// The prefixes that are worth least go first. Then the job that started last gives its sequence up;
// the oldest one goes on in any case, so that there is always progress.
bool SchedulerImpl::MakeRoom() {
  while (true) {
    const auto needed = static_cast<std::int64_t>(tokens_.size());
    if (needed == 0) return false;
    while (!HasRoom(needed)) {
      const std::int64_t missing = needed - engine_.cache().FreeCells();
      if (prefixes_->Evict(std::max<std::int64_t>(missing, 64)) < 0) break;
    }
    if (HasRoom(needed)) return true;
    if (live_.size() > 1) {
      const std::size_t next = NextToPark();
      if (live_[next]->shifted()) {
        FinishAt(next, StopReason::kLength);
      } else {
        Park(next);
      }
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
      FinishAt(0, StopReason::kLength,
               {StatusCode::kCacheFull, "the cache is too small for the request"});
      return false;
    } else {
      FinishAt(0, StopReason::kLength,
               {StatusCode::kCacheFull, "the cache is too small for the request"});
      return false;
    }
    Compose();
  }
}

std::size_t SchedulerImpl::NextToPark() const {
  const auto first = [](const JobPtr& a, const JobPtr& b) {
    if (a->shifted() != b->shifted()) return b->shifted();  // its end is not for later
    return a->request.priority <= b->request.priority;
  };
  const auto next = std::min_element(live_.rbegin(), live_.rend(), first);
  return static_cast<std::size_t>(live_.rend() - next) - 1;
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
