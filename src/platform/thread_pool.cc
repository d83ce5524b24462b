#include "platform/thread_pool.h"

#include <cassert>
#include <chrono>
#include <exception>

#include "platform/processors.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the serial work between two operations of a decode step, and short enough that
// an idle pool costs nothing that shows.
constexpr std::chrono::nanoseconds kSpinNs{50'000};
constexpr int kPausesPerLook = 8;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : spin_(threads <= FindProcessorLimits().AvailableProcessors()) {
  assert(threads >= 1);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { WorkerLoop(thread); });
    }
  } catch (const std::exception&) {
    // A limit on processes or memory. Those that run must be kept: they refer to this object.
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(std::int64_t tasks, TaskFunction function, const void* context) {
  if (workers_.empty() || tasks <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) function(context, task, 0);
    return;
  }
  function_ = function;
  context_ = context;
  tasks_ = tasks;
  unfinished_.store(tasks, std::memory_order_relaxed);
  // A worker that counts down late, after the last loop's end, claims a task of this one by it:
  // whoever gets a positive number owns a task of the loop that is published with it.
  unclaimed_.store(tasks, std::memory_order_seq_cst);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  // Either this load sees a worker that is about to sleep, or that worker sees the new epoch.
  if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
  RunTasks(0);
  WaitUntilDone();
}

void ThreadPool::RunTasks(int thread) {
  std::int64_t done = 0;
  while (unclaimed_.load(std::memory_order_relaxed) > 0) {
    const std::int64_t left = unclaimed_.fetch_sub(1, std::memory_order_acq_rel);
    if (left <= 0) break;
    function_(context_, tasks_ - left, thread);
    ++done;
  }
  if (done > 0) unfinished_.fetch_sub(done, std::memory_order_acq_rel);
}

void ThreadPool::WaitUntilDone() {
  const Clock::time_point deadline = Clock::now() + kSpinNs;
  bool spin = spin_;
  while (unfinished_.load(std::memory_order_acquire) > 0) {
    if (!spin) {
      std::this_thread::yield();
      continue;
    }
    for (int i = 0; i < kPausesPerLook; ++i) Pause();
    spin = Clock::now() < deadline;
  }
}

void ThreadPool::WorkerLoop(int thread) {
  while (!stop_.load(std::memory_order_acquire)) {
    if (SpinForWork()) {
      RunTasks(thread);
    } else {
      SleepForWork();
    }
  }
}

bool ThreadPool::SpinForWork() const {
  if (HasWork()) return true;
  if (!spin_) return false;
  const Clock::time_point deadline = Clock::now() + kSpinNs;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (unclaimed_.load(std::memory_order_relaxed) > 0) return true;
      Pause();
    }
  } while (Clock::now() < deadline);
  return false;
}

void ThreadPool::SleepForWork() {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
  if (!HasWork() && !stop_.load(std::memory_order_seq_cst)) {
    epoch_.wait(epoch, std::memory_order_seq_cst);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace kvcache
