// Lets generations and batches of embeddings use the processors in turns of equal time. Steps of several models run
// beside each other, as without embeddings; a batch runs alone.
//
//   | batch: T seconds | steps: T seconds, or until none comes | batch …
//
// A batch should end its turn between passes, once it has taken as long as a turn may (embedding_service.cc).
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "base/seconds_since.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache::server {

class ComputeTurns final : public StepTurns {
 public:
  // `clock` returns seconds since some moment; empty: the system's clock.
  explicit ComputeTurns(std::function<double()> clock = {}) : clock_(std::move(clock)) {}

  // A step of a generation. Waits for a batch that runs, and for one that waits if the time of steps is over.
  void BeginStep() override {
    std::unique_lock lock(mutex_);
    ++waiting_steps_;
    changed_.wait(lock, [&] {
      return !batch_ && (waiting_batches_ == 0 || steps_first_ > 0 || Now() < steps_until_);
    });
    --waiting_steps_;
    if (steps_first_ > 0) --steps_first_;
    ++steps_;
  }
  void EndStep() override {
    {
      const std::lock_guard lock(mutex_);
      --steps_;
      last_step_ = quiet_since_ = Now();
      if (waiting_batches_ == 0) return;
    }
    changed_.notify_all();
  }

  // A turn of embeddings. Waits for the steps that run, for those that waited while the last batch ran, and until steps
  // have had as much time as that batch, unless none comes any more.
  void BeginBatch() {
    std::unique_lock lock(mutex_);
    ++waiting_batches_;
    while (!MayBatch()) {
      const bool is_told = batch_ || steps_ > 0 || steps_first_ > 0;  // when the next change comes
      if (is_told) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, std::chrono::duration<double>(kBetweenSteps));
      }
    }
    --waiting_batches_;
    batch_ = true;
    batch_began_ = Now();
  }
  void EndBatch() {
    {
      const std::lock_guard lock(mutex_);
      batch_ = false;
      steps_first_ = waiting_steps_;
      const double now = Now();
      const bool has_steps = waiting_steps_ > 0 || batch_began_ - last_step_ < kJustNow;
      steps_until_ = has_steps ? now + (now - batch_began_) : now;
      quiet_since_ = now;
    }
    changed_.notify_all();
  }

  // Returns whether somebody generates now, or has just done so.
  bool HasSteps() const {
    const std::lock_guard lock(mutex_);
    return steps_ > 0 || waiting_steps_ > 0 || Now() - last_step_ < kJustNow;
  }

 private:
  static constexpr double kJustNow = 0.5;  // seconds
  static constexpr double kBetweenSteps =
      0.005;  // the most that a generation does between two steps

  double Now() const { return clock_ ? clock_() : SecondsSince({}); }
  bool MayBatch() const {
    if (batch_ || steps_ > 0 || steps_first_ > 0) return false;
    const double now = Now();
    return now >= steps_until_ || (waiting_steps_ == 0 && now - quiet_since_ >= kBetweenSteps);
  }

  const std::function<double()> clock_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. Times are those of the clock.
  int steps_ = 0;  // that run
  int waiting_steps_ = 0;
  int steps_first_ = 0;  // of these, how many go before the next batch
  int waiting_batches_ = 0;
  bool batch_ = false;  // one runs
  double batch_began_ = 0.0;
  double steps_until_ = Now();  // when a batch may be next again
  double quiet_since_ = Now();  // when the last step or batch ended
  double last_step_ = Now() - kJustNow;
};

}  // namespace kvcache::server
