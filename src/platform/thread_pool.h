// A fixed set of threads that run one loop at a time, the caller among them.
//
// Made for operations of some microseconds in a row: starting a loop costs two atomic writes,
// no lock and no allocation. Workers spin for kSpinNs after a loop, then sleep until the next.
// With more threads than this process has processors, or time on them (processors.h), nobody spins:
// a spinning thread would take the time of one that works.
//
// Thread safety: one thread at a time calls ParallelFor, and never from inside a task.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvcache {

class ThreadPool {
 public:
  // `threads` threads in all: starts threads - 1 of them, or as many as the system allows;
  // threads() then says how many there are. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) once for each task of [0, tasks), on any thread, starting them in
  // ascending order; thread is in [0, threads()) and tells concurrent calls apart. Returns
  // when all are done; what the tasks wrote is visible to the caller.
  template <typename Body>
  void ParallelFor(std::int64_t tasks, const Body& body) {
    Run(
        tasks,
        [](const void* context, std::int64_t task, int thread) {
          (*static_cast<const Body*>(context))(task, thread);
        },
        &body);
  }

 private:
  using TaskFunction = void (*)(const void* context, std::int64_t task, int thread);

  void Run(std::int64_t tasks, TaskFunction function, const void* context);
  void RunTasks(int thread);
  void WorkerLoop(int thread);
  bool SpinForWork() const;
  void SleepForWork();
  void WaitUntilDone();
  bool HasWork() const { return unclaimed_.load(std::memory_order_seq_cst) > 0; }

  // The loop that runs. Written while unfinished_ is 0, read only by a thread that has claimed
  // a task, which keeps unfinished_ above 0.
  TaskFunction function_ = nullptr;
  const void* context_ = nullptr;
  std::int64_t tasks_ = 0;

  // On cache lines of their own: all threads write them.
  alignas(64) std::atomic<std::int64_t> unclaimed_{0};  // <= 0: nothing to claim
  alignas(64) std::atomic<std::int64_t> unfinished_{0};
  alignas(64) std::atomic<std::uint32_t> epoch_{0};  // what sleepers wait on
  std::atomic<std::int32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  bool spin_ = true;
  std::vector<std::thread> workers_;
};

}  // namespace kvcache
