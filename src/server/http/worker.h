// Runs functions in order on a thread of its own.
//
// Thread safety: any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace kvcache::server {

class Worker {
 public:
  Worker(std::size_t max, std::size_t max_bytes)
      : max_(max), max_bytes_(max_bytes), thread_([this] { Run(); }) {}
  ~Worker() { End(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Drops what waits, and all that comes later. REQUIRES: is not called by work.
  void End() {
    std::deque<Work> dropped;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      dropped.swap(work_);
      bytes_ = 0;
    }
    more_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  // Returns false if the queue is full. `bytes`: what the work keeps.
  bool Add(std::size_t bytes, std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      const bool full = work_.size() >= max_ || bytes_ + bytes > max_bytes_;
      if (full && !work_.empty()) return false;
    }
    Continue(bytes, std::move(work));
    return true;
  }

  // Does the rest of work that was admitted before: now, if this is the worker's thread.
  void Continue(std::size_t bytes, std::function<void()> work) {
    if (current_ == this) return Do(work);
    {
      const std::lock_guard lock(mutex_);
      if (ending_) return;
      work_.push_back({bytes, std::move(work)});
      bytes_ += bytes;
    }
    more_.notify_one();
  }

  bool idle() const { return size() == 0; }
  // Returns how many functions run or wait.
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return work_.size() + (working_ ? 1 : 0);
  }

 private:
  struct Work {
    std::size_t bytes = 0;
    std::function<void()> run{};
  };

  void Run() {
    current_ = this;
    std::unique_lock lock(mutex_);
    while (true) {
      more_.wait(lock, [this] { return ending_ || !work_.empty(); });
      if (ending_) return;
      Work work = std::move(work_.front());
      work_.pop_front();
      bytes_ -= work.bytes;
      working_ = true;
      lock.unlock();
      Do(work.run);
      work.run = nullptr;
      lock.lock();
      working_ = false;
    }
  }

  // Work that runs out of memory is given up: its reply ends the request.
  static void Do(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception&) {
      return;
    }
  }

  inline static thread_local const Worker* current_ = nullptr;  // whose thread this is
  const std::size_t max_, max_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable more_;
  std::deque<Work> work_;
  std::size_t bytes_ = 0;  // of the work that waits
  bool ending_ = false, working_ = false;
  std::thread thread_;
};

}  // namespace kvcache::server
