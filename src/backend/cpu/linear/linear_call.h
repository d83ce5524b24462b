// One call of Linear: its groups' inputs in the forms that the kernels read, and their tasks.
//
// Thread safety: one thread; it uses the pool's others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/linear/linear_block.h"
#include "backend/cpu/linear/linear_float.h"
#include "backend/cpu/workspace.h"
#include "kvcache/backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// What the groups of a call share, summed up over all of them before any work is cut.
struct LinearTotals {
  int threads = 1;
  std::int64_t weight_bytes = 0;
  std::int64_t panels = 0;             // of float weights that are multiplied by panels
  std::int64_t thread_bytes = 0;       // that a thread works in, whatever the kernel
  std::byte* thread_memory = nullptr;  // [threads][thread_bytes]
};

// A group's inputs in the forms that its kernels read, cut from one piece of workspace, and its
// work as tasks. Lies in workspace itself: REQUIRES a trivial destructor.
class LinearGroupWork {
 public:
  explicit LinearGroupWork(const LinearGroup& group);

  void AddTo(LinearTotals& totals) const;
  std::int64_t WorkspaceBytes() const;
  // Takes WorkspaceBytes() from `base`; its tasks are numbered from these on.
  void Bind(std::byte* base, const LinearTotals& totals, std::int64_t first_prepare_task,
            std::int64_t first_task);

  std::int64_t prepare_end() const { return first_prepare_task_ + PrepareTasks(); }
  std::int64_t end() const { return first_task_ + tasks_; }
  std::int64_t values() const { return inputs_ * tokens_; }
  void Prepare(std::int64_t task) const;
  void Run(const LinearTotals& totals, std::int64_t task, int thread) const;

 private:
  bool UsesPanels() const { return any_float_ && tokens_ >= flt::kMinPanelTokens; }
  std::int64_t PrepareTasks() const { return (any_block_ ? tokens_ : 0) + packed_tiles_; }
  std::int64_t RowsPerTask(const LinearWeight& weight) const;
  std::int64_t Tasks(const LinearWeight& weight) const;
  void RunTask(const LinearTotals& totals, const LinearOutput& output, std::int64_t task,
               int thread) const;
  void RunPanelTask(const LinearOutput& output, std::int64_t task, std::byte* workspace) const;
  void RunBlockTask(const LinearOutput& output, std::int64_t begin, std::int64_t end,
                    std::byte* workspace) const;

  const float* x_;
  std::int64_t inputs_;
  std::int64_t tokens_;
  std::span<const LinearOutput> outputs_;
  bool any_block_ = false;
  bool any_float_ = false;
  // By InputScales; no tokens where no weight asks for the kind.
  std::array<block::QuantisedX, 2> quantised_;
  float* packed_ = nullptr;
  std::int64_t packed_tiles_ = 0;
  std::int64_t tile_splits_ = 1;  // parts into which each panel's tiles are cut
  std::int64_t task_bytes_ = 0;   // of weights, for a decode task
  std::int64_t first_prepare_task_ = 0;
  std::int64_t first_task_ = 0;
  std::int64_t tasks_ = 0;
};

// All groups of a call, in workspace. REQUIRES: at least one; weights of this backend, shapes that
// fit.
class LinearCall {
 public:
  LinearCall(ThreadPool& pool, std::span<const LinearGroup> groups)
      : pool_(pool), requests_(groups) {}

  Status Reserve(Workspace& workspace);  // kOutOfMemory
  void Prepare() const;
  void Run() const;

 private:
  ThreadPool& pool_;
  std::span<const LinearGroup> requests_;
  LinearTotals totals_;
  std::span<const LinearGroupWork> groups_;
};

}  // namespace kvcache::cpu
