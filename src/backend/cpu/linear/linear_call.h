// One call of Linear: the inputs of its groups in the forms that the kernels read, and their tasks.
//
// Thread safety: used by one thread, which runs the tasks on the pool's threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/common/workspace.h"
#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cpu/linear/linear_float.h"
#include "backend/cpu/linear/weight_nodes.h"
#include "kvcache/backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// Totals over all groups of a call, known before the work is cut into tasks.
struct LinearTotals {
  const ThreadPool* pool = nullptr;
  std::int64_t weight_bytes = 0;
  std::int64_t panels = 0;             // panels of float weights
  std::int64_t row_panels = 0;         // 16 rows of other weights
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
  // Places the inputs in WorkspaceBytes() bytes at `base` and numbers the tasks that prepare them from
  // `first_prepare_task` on.
  void Bind(std::byte* base, const LinearTotals& totals, std::int64_t first_prepare_task);

  std::int64_t prepare_end() const { return first_prepare_task_ + PrepareTasks(); }
  std::int64_t values() const { return inputs_ * tokens_; }
  void Prepare(std::int64_t task) const;
  // The number of tasks with the rows of a memory node (weight_nodes.h), and one of them.
  std::int64_t Tasks(const LinearTotals& totals, int node) const;
  void Run(const LinearTotals& totals, int node, std::int64_t task, int thread) const;

 private:
  bool UsesPanels() const { return any_float_ && tokens_ >= flt::kMinPanelTokens; }
  std::int64_t PrepareTasks() const { return (any_block_ ? tokens_ : 0) + packed_tiles_; }
  std::int64_t RowsPerTask(const LinearWeight& weight) const;
  std::int64_t Tasks(const LinearOutput& output, const RowsOfMatrix& rows) const;
  // `rows`: those of the node.
  void RunTask(const LinearTotals& totals, const LinearOutput& output, const RowsOfMatrix& rows,
               std::int64_t task, int thread) const;
  void RunPanelTask(const LinearOutput& output, std::int64_t panel, std::int64_t part,
                    std::byte* workspace) const;
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
  std::int64_t step_rows_ = 0;    // decode tasks have a multiple of so many rows
  std::int64_t first_prepare_task_ = 0;
};

// The tasks of a group with the rows of a memory node.
struct LinearPart {
  const LinearGroupWork* group = nullptr;
  int node = 0;
  std::int64_t first_task = 0;
  std::int64_t end = 0;
};

// All groups of a call. REQUIRES: at least one group, weights of this backend, shapes that fit.
class LinearCall {
 public:
  LinearCall(ThreadPool& pool, std::span<const LinearGroup> groups)
      : pool_(pool), requests_(groups) {}

  Status Reserve(Workspace& workspace);  // kOutOfMemory
  void Prepare() const;
  void Run() const;

  // The tasks of Run, in their order, and the number of tasks up to the end of each node.
  std::span<const LinearPart> parts() const { return parts_; }
  const ThreadPool::Ends& ends() const { return ends_; }

 private:
  void NumberTasks(LinearPart* parts);

  ThreadPool& pool_;
  std::span<const LinearGroup> requests_;
  LinearTotals totals_;
  std::span<const LinearGroupWork> groups_;
  std::span<const LinearPart> parts_;  // [nodes][groups]
  ThreadPool::Ends ends_{};
};

}  // namespace kvcache::cpu
