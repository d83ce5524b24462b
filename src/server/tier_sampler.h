// Asks the stores now and then what they hold, on a thread of its own: one in a network may take long to
// answer.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kvcache/store.h"

namespace kvcache::server {

struct TierBytes {
  StoreTier tier{};
  std::int64_t held = 0;
  std::int64_t budget = 0;   // that `held` keeps to
  std::int64_t evicted = 0;  // objects
};

class TierSampler {
 public:
  static constexpr std::chrono::seconds kEvery{5};

  // An empty function: there are no stores.
  explicit TierSampler(std::function<std::vector<TierBytes>()> ask) {
    if (ask) thread_ = std::thread([this, ask = std::move(ask)] { Run(ask); });
  }
  ~TierSampler() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  TierSampler(const TierSampler&) = delete;
  TierSampler& operator=(const TierSampler&) = delete;

  // Returns the last answer.
  std::vector<TierBytes> Last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  void Run(const std::function<std::vector<TierBytes>()>& ask) {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      lock.unlock();
      std::vector<TierBytes> answer = Ask(ask);
      lock.lock();
      last_ = std::move(answer);
      changed_.wait_for(lock, kEvery, [this] { return ending_; });
    }
  }

  static std::vector<TierBytes> Ask(const std::function<std::vector<TierBytes>()>& ask) {
    try {
      return ask();
    } catch (const std::exception&) {  // std::bad_alloc
      return {};
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TierBytes> last_;  // guarded by mutex_
  bool ending_ = false;          // guarded by mutex_
  std::thread thread_;           // last
};

}  // namespace kvcache::server
