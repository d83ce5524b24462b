// Lets generations and batches of embeddings use the processors in turns, so that neither waits for more than one pass of
// the other. Steps of several models run beside each other, as without embeddings; a batch runs alone.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "kvcache_engine/scheduler.h"

namespace kvcache::server {

class ComputeTurns final : public StepTurns {
 public:
  // A step of a generation. Waits for a batch that runs, and for the turn of one that waits.
  void BeginStep() override {
    std::unique_lock lock(mutex_);
    ++waiting_steps_;
    changed_.wait(lock, [&] { return !batch_ && (waiting_batches_ == 0 || steps_first_ > 0); });
    --waiting_steps_;
    if (steps_first_ > 0) --steps_first_;
    ++steps_;
  }
  void EndStep() override {
    {
      const std::lock_guard lock(mutex_);
      --steps_;
      last_step_ = Clock::now();
      if (waiting_batches_ == 0) return;
    }
    changed_.notify_all();
  }

  // A pass of embeddings. Waits for the steps that run, and for those that waited while the last batch ran.
  void BeginBatch() {
    std::unique_lock lock(mutex_);
    ++waiting_batches_;
    changed_.wait(lock, [&] { return !batch_ && steps_ == 0 && steps_first_ == 0; });
    --waiting_batches_;
    batch_ = true;
  }
  void EndBatch() {
    {
      const std::lock_guard lock(mutex_);
      batch_ = false;
      steps_first_ = waiting_steps_;
    }
    changed_.notify_all();
  }

  // Returns whether somebody generates now, or has just done so.
  bool HasSteps() const {
    const std::lock_guard lock(mutex_);
    return steps_ > 0 || waiting_steps_ > 0 || Clock::now() - last_step_ < kJustNow;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kJustNow{500};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  int steps_ = 0;  // that run
  int waiting_steps_ = 0;
  int steps_first_ = 0;  // of these, how many go before the next batch
  int waiting_batches_ = 0;
  bool batch_ = false;  // one runs
  Clock::time_point last_step_ = Clock::now() - kJustNow;
};

}  // namespace kvcache::server
