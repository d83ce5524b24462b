#include "platform/thread_pool.h"

#include <algorithm>
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
  places_[0].first_thread_after = threads;
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) StartWorker(thread, 0, {});
  CountThreads();
}

ThreadPool::ThreadPool(std::span<const NodeThreads> nodes, NumaSystem& system)
    : nodes_(static_cast<int>(nodes.size())) {
  assert(!nodes.empty() && nodes.size() <= kMaxMemoryNodes);
  int planned = 0;
  for (int node = 0; node < nodes_; ++node) {
    planned += nodes[Index(node)].threads;
    places_[Index(node)].first_thread_after = planned;
    places_[Index(node)].id = nodes[Index(node)].node;
    places_[Index(node)].is_merged = nodes[Index(node)].is_merged;
    for (const int processor : nodes[Index(node)].processors) {
      const auto size = static_cast<std::size_t>(processor) + 1;
      if (node_of_processor_.size() < size) node_of_processor_.resize(size, -1);
      node_of_processor_[size - 1] = node;
    }
  }
  if (nodes_ > 1) system_ = &system;
  spin_ = planned <= FindProcessorLimits().AvailableProcessors();
  pin_errors_.resize(static_cast<std::size_t>(planned));
  workers_.reserve(static_cast<std::size_t>(planned - 1));
  for (int node = 0, thread = 0; node < nodes_; ++node) {
    for (; thread < places_[Index(node)].first_thread_after; ++thread) {
      if (thread > 0) StartWorker(thread, node, nodes[Index(node)].processors);
    }
  }
  CountThreads();
  if (system_ != nullptr) WaitUntilPinned();
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::StartWorker(int thread, int node, std::span<const int> processors) {
  // A limit on processes or memory ended the threads before: those that run must be kept, since they refer to this
  // object, and their numbers have no gaps.
  if (threads() != thread) return;
  try {
    workers_.emplace_back(
        [this, thread, node, own = std::vector<int>(processors.begin(), processors.end())] {
          if (system_ != nullptr) {
            const Status pinned = system_->Pin(own);
            if (!pinned.ok()) pin_errors_[Index(thread)] = pinned.message();
            started_.fetch_add(1, std::memory_order_release);
            started_.notify_one();
          }
          WorkerLoop(thread, node);
        });
    places_[Index(node)].has_worker = true;
  } catch (const std::exception&) {
    return;
  }
}

// Threads that did not start are the last ones. Workers read none of this before the first loop.
void ThreadPool::CountThreads() {
  for (Node& node : places_) node.first_thread_after = std::min(node.first_thread_after, threads());
}

// The first loop may place memory, so all threads are where they belong by then.
void ThreadPool::WaitUntilPinned() {
  const auto workers = static_cast<std::int32_t>(workers_.size());
  for (std::int32_t started = 0; (started = started_.load(std::memory_order_acquire)) < workers;) {
    started_.wait(started);
  }
}

std::string ThreadPool::pin_error() const {
  const auto error =
      std::ranges::find_if(pin_errors_, [](const auto& text) { return !text.empty(); });
  return error == pin_errors_.end() ? std::string() : *error;
}

int ThreadPool::NodeOfCaller() const {
  if (nodes_ == 1) return 0;
  const int processor = system_->CurrentProcessor();
  if (processor < 0 || Index(processor) >= node_of_processor_.size()) return 0;
  return std::max(node_of_processor_[Index(processor)], 0);
}

void ThreadPool::Run(const Ends& ends, Call call, TakenBy taken_by) {
  const std::int64_t tasks = ends[Index(nodes_ - 1)];
  const bool is_for_caller =
      tasks == 0 || (tasks == 1 && (nodes_ == 1 || taken_by == TakenBy::kAnyNode));
  if (workers_.empty() || is_for_caller) {
    for (std::int64_t task = 0; task < tasks; ++task) call.function(call.context, task, 0);
    return;
  }
  call_ = call;
  if (nodes_ == 1) taken_by = TakenBy::kAnyNode;  // all are at home
  std::int64_t begin = 0;
  for (int node = 0; node < nodes_; ++node) {
    Queue& own = queue(node);
    own.end = ends[Index(node)];
    own.unfinished.store(own.end - begin, std::memory_order_relaxed);
    begin = own.end;
  }
  begin = 0;
  for (int node = 0; node < nodes_; ++node) {
    // A worker that counts down late, after the last loop's end, claims a task of this one by it:
    // whoever gets a positive number owns a task of the loop that is published with it.
    Unclaimed(queue(node), taken_by).store(ends[Index(node)] - begin, std::memory_order_seq_cst);
    begin = ends[Index(node)];
  }
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  // Either this load sees a worker that is about to sleep, or that worker sees the new epoch.
  if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
  RunTasks(0, NodeOfCaller());
  WaitUntilDone();
}

// A task that only its home may take, and whose home has no worker, is the caller's.
bool ThreadPool::IsHome(int of_node, int thread, int node) const {
  return nodes_ > 1 && (of_node == node || (thread == 0 && !places_[Index(of_node)].has_worker));
}

void ThreadPool::RunTasks(int thread, int node) {
  for (int i = 0; i < nodes_; ++i) {
    const int of_node = (node + i) % nodes_;
    RunTasksOf(queue(of_node), TakenBy::kAnyNode, thread);
    if (IsHome(of_node, thread, node)) RunTasksOf(queue(of_node), TakenBy::kHomeNode, thread);
  }
}

void ThreadPool::RunTasksOf(Queue& queue, TakenBy taken_by, int thread) {
  std::atomic<std::int64_t>& unclaimed = Unclaimed(queue, taken_by);
  std::int64_t done = 0;
  while (unclaimed.load(std::memory_order_relaxed) > 0) {
    const std::int64_t left = unclaimed.fetch_sub(1, std::memory_order_acq_rel);
    if (left <= 0) break;
    call_.function(call_.context, queue.end - left, thread);
    ++done;
  }
  if (done > 0) queue.unfinished.fetch_sub(done, std::memory_order_acq_rel);
}

void ThreadPool::WaitUntilDone() {
  const Clock::time_point deadline = Clock::now() + kSpinNs;
  bool spin = spin_;
  for (int node = 0; node < nodes_; ++node) {
    while (queue(node).unfinished.load(std::memory_order_acquire) > 0) {
      if (!spin) {
        std::this_thread::yield();
        continue;
      }
      for (int i = 0; i < kPausesPerLook; ++i) Pause();
      spin = Clock::now() < deadline;
    }
  }
}

void ThreadPool::WorkerLoop(int thread, int node) {
  while (!stop_.load(std::memory_order_acquire)) {
    if (SpinForWork(thread, node)) {
      RunTasks(thread, node);
    } else {
      SleepForWork(thread, node);
    }
  }
}

bool ThreadPool::HasWork(int thread, int node, std::memory_order order) const {
  for (int i = 0; i < nodes_; ++i) {
    const int of_node = (node + i) % nodes_;
    const auto& [by_any, by_home] = queue(of_node).unclaimed;
    if (by_any.load(order) > 0) return true;
    if (IsHome(of_node, thread, node) && by_home.load(order) > 0) return true;
  }
  return false;
}

bool ThreadPool::SpinForWork(int thread, int node) const {
  if (HasWork(thread, node, std::memory_order_seq_cst)) return true;
  if (!spin_) return false;
  const Clock::time_point deadline = Clock::now() + kSpinNs;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (HasWork(thread, node, std::memory_order_relaxed)) return true;
      Pause();
    }
  } while (Clock::now() < deadline);
  return false;
}

void ThreadPool::SleepForWork(int thread, int node) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
  if (!HasWork(thread, node, std::memory_order_seq_cst) && !stop_.load(std::memory_order_seq_cst)) {
    epoch_.wait(epoch, std::memory_order_seq_cst);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace kvcache
