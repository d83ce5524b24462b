// One call of Linear: the inputs of its groups in the forms that the kernels read, and their tasks.
//
// Thread safety: used by one thread, which runs the tasks on the pool's threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/common/workspace.h"
#include "backend/cpu/linear/linear_block.h"
#include "backend/cpu/linear/linear_float.h"
#include "kvcache/backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// Totals over all groups of a call, known before the work is cut into tasks.
struct LinearTotals {
  int threads = 1;
  std::int64_t weight_bytes = 0;
  std::int64_t panels = 0;             // panels of float weights
  std::int64_t thread_bytes = 0;       // workspace of a thread, enough for any kernel
  std::byte* thread_memory = nullptr;  // [threads][thread_bytes]
};

// A group's inputs in the forms that its kernels read, and its work as tasks. The inputs and the
// object itself are in the workspace. REQUIRES: a trivial destructor.
class LinearGroupWork {
 public:
  explicit LinearGroupWork(const LinearGroup& group);

  void AddTo(LinearTotals& totals) const;
  std::int64_t WorkspaceBytes() const;
  // Places the inputs in WorkspaceBytes() bytes at `base` and numbers the tasks from
  // `first_prepare_task` and `first_task` on.
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
  // Indexed by InputScales; without tokens if no weight needs that kind.
  std::array<block::QuantizedX, block::kInputScales> quantized_;
  float* packed_ = nullptr;
  std::int64_t packed_tiles_ = 0;
  std::int64_t tile_splits_ = 1;  // parts into which each panel's tiles are cut
  std::int64_t task_bytes_ = 0;   // bytes of weights per decode task
  std::int64_t first_prepare_task_ = 0;
  std::int64_t first_task_ = 0;
  std::int64_t tasks_ = 0;
};

// All groups of a call. REQUIRES: at least one group, weights of this backend, shapes that fit.
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
