// A fixed set of threads that run one loop at a time, the caller among them.
//
// Made for operations of some microseconds in a row: starting a loop costs two atomic writes,
// no lock and no allocation. Workers spin for kSpinNs after a loop, then sleep until the next.
// With more threads than this process has processors, or time on them (processors.h), nobody spins:
// a spinning thread would take the time of one that works.
//
// A pool may be spread over memory nodes (docs/design/numa.md). Each task of a loop then has a home, a node whose
// threads take it first. Threads that find no task of their own node take those of others. A pool of one node has one
// queue of tasks, and is not pinned.
//
//   tasks      0 1 2 3 4 5 | 6 7 8 9 10 11
//   home       node 0      | node 1
//
// Thread safety: one thread at a time calls ParallelFor, and never from inside a task.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "platform/numa/memory_nodes.h"
#include "platform/numa/numa_system.h"

namespace kvcache {

// Who may run a task.
enum class TakenBy : std::uint8_t {
  kAnyNode,   // its own node's threads first
  kHomeNode,  // its own node's threads only (or the caller, if the node has none): for tasks that write memory for
              // the first time, which places it
};

class ThreadPool {
 public:
  // `threads` threads in all, on one node: starts threads - 1 of them, or as many as the system allows;
  // threads() then says how many there are. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  // The same with threads on several nodes, which are pinned to the processors of their node (SpreadThreads); the
  // caller is not, and takes the tasks of the node where it is. REQUIRES: 1 to kMaxMemoryNodes nodes; `system`
  // outlives the pool.
  ThreadPool(std::span<const NodeThreads> nodes, NumaSystem& system);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // The number of nodes, and of the threads of one that run; the caller is one of the first node's.
  int nodes() const { return nodes_; }
  int threads_of(int node) const { return FirstThread(node + 1) - FirstThread(node); }
  // The system's number of a node, and the system that placed the threads. REQUIRES: nodes() > 1.
  int node_id(int node) const { return places_[Index(node)].id; }
  // Returns whether the node is several of the system's (NodeThreads::is_merged).
  bool is_merged(int node) const { return places_[Index(node)].is_merged; }
  NumaSystem& system() const { return *system_; }
  // Returns why a thread was not pinned; empty if all are, or if there is one node.
  std::string pin_error() const;

  // Returns the first of the parts of [0, count) that belong to nodes [node, nodes()): parts are in proportion to the
  // threads of nodes. PartBegin(count, nodes()) is count.
  std::int64_t PartBegin(std::int64_t count, int node) const {
    return count * FirstThread(node) / threads();
  }

  // Calls body(task, thread) once for each task of [0, tasks), on any thread, starting those of a home in
  // ascending order; thread is in [0, threads()) and tells concurrent calls apart. Returns
  // when all are done; what the tasks wrote is visible to the caller. The home of [PartBegin(tasks, n),
  // PartBegin(tasks, n + 1)) is node n.
  template <typename Body>
  void ParallelFor(std::int64_t tasks, const Body& body, TakenBy taken_by = TakenBy::kAnyNode) {
    Ends ends;
    for (int node = 0; node + 1 < nodes_; ++node) ends[Index(node)] = PartBegin(tasks, node + 1);
    ends[Index(nodes_ - 1)] = tasks;
    Run(ends, Call{CallBody<Body>, &body}, taken_by);
  }

  // The same with homes of the caller's choice: the home of [ends[n - 1], ends[n]) is node n. Ends ascend, and the last
  // one is the number of tasks.
  using Ends = std::array<std::int64_t, kMaxMemoryNodes>;
  template <typename Body>
  void ParallelFor(const Ends& ends, const Body& body, TakenBy taken_by = TakenBy::kAnyNode) {
    Run(ends, Call{CallBody<Body>, &body}, taken_by);
  }

 private:
  struct Call {
    void (*function)(const void* context, std::int64_t task, int thread) = nullptr;
    const void* context = nullptr;
  };

  // The tasks of a node. Counters are on cache lines of their own, since all threads write them.
  struct Queue {
    // <= 0: nothing to claim. Loops of either kind have a counter of their own (TakenBy), so a thread that comes late
    // to a loop that all may take gets no task of the next one, if that is for home threads.
    alignas(64) std::array<std::atomic<std::int64_t>, 2> unclaimed{};
    std::int64_t end = 0;  // one past its last task; written as `call_` is
    alignas(64) std::atomic<std::int64_t> unfinished{0};
  };

  // What stays as it is. Tasks read it, so it is not beside the counters.
  struct Node {
    int first_thread_after = 0;  // threads of this node and of those before it
    int id = 0;                  // the system's
    bool is_merged = false;
    bool has_worker = false;
  };

  template <typename Body>
  static void CallBody(const void* context, std::int64_t task, int thread) {
    (*static_cast<const Body*>(context))(task, thread);
  }
  static constexpr std::size_t Index(int node) { return static_cast<std::size_t>(node); }
  static std::atomic<std::int64_t>& Unclaimed(Queue& queue, TakenBy taken_by) {
    return queue.unclaimed[static_cast<std::size_t>(taken_by)];
  }
  Queue& queue(int node) { return queues_[Index(node)]; }
  const Queue& queue(int node) const { return queues_[Index(node)]; }
  int FirstThread(int node) const {
    return node == 0 ? 0 : places_[Index(node - 1)].first_thread_after;
  }

  void StartWorker(int thread, int node, std::span<const int> processors);
  void WaitUntilPinned();
  int NodeOfCaller() const;
  void CountThreads();
  bool IsHome(int of_node, int thread, int node) const;
  void Run(const Ends& ends, Call call, TakenBy taken_by);
  void RunTasks(int thread, int node);
  void RunTasksOf(Queue& queue, TakenBy taken_by, int thread);
  void WorkerLoop(int thread, int node);
  bool SpinForWork(int thread, int node) const;
  void SleepForWork(int thread, int node);
  void WaitUntilDone();
  bool HasWork(int thread, int node, std::memory_order order) const;

  // The loop that runs. Written while no task is unfinished, read only by a thread that has claimed
  // a task, which keeps that one unfinished.
  Call call_;
  int nodes_ = 1;

  std::array<Node, kMaxMemoryNodes> places_;
  std::array<Queue, kMaxMemoryNodes> queues_;
  alignas(64) std::atomic<std::uint32_t> epoch_{0};  // what sleepers wait on
  std::atomic<std::int32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  bool spin_ = true;
  NumaSystem* system_ = nullptr;          // null: one node
  std::vector<int> node_of_processor_;    // -1: of no node
  std::vector<std::string> pin_errors_;   // [threads]
  std::atomic<std::int32_t> started_{0};  // workers that tried to pin themselves
  std::vector<std::thread> workers_;
};

}  // namespace kvcache
