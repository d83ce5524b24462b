// Turns the plan of a call of attention into the arrays that the kernels read.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention/attention_plan.h"
#include "backend/cuda/attention/attention_kernels.h"
#include "kvcache/kv.h"
#include "kvcache/visibility.h"

namespace kvcache::cuda {

// The rows of a task that the kernels are compiled for: those for any task, then those that decode.
inline constexpr std::array<int, 6> kTaskRows = {4, 8, 16, 64, 4, 8};
inline constexpr std::size_t kFirstDecode = 4;  // the same number of rows is kFirstDecode before

// Which of kTaskRows this call may use: large heads do not fit into shared memory with many rows, and kernels that
// decode are made for some types and heads.
using UsableRows = std::array<bool, kTaskRows.size()>;

// About as many tasks as run at once.
struct WantedTasks {
  int prefill = 1;
  int decode = 1;
};

struct AttentionTasks {
  std::array<std::vector<AttendTask>, kTaskRows.size()> tasks;  // by the kernel's rows
  std::vector<AttendToken> tokens;
  std::vector<AttendRun> runs;
  std::vector<std::int32_t> splits;
  std::vector<MergeToken> merge_tokens;
  std::vector<MergeStep> merge_steps;
  std::int64_t partial_floats = 0;  // of all partial results
};

// Floats of the partial results of one launch, 256 MiB; those of a call with more take several launches.
inline constexpr std::int64_t kMaxPartialFloats = std::int64_t{64} << 20;

// Sequences in prefill are cut into at least about wanted.prefill tasks, as far as their partial results allow. Those of a
// sequence that shares no prefix take at most `max_floats`, or one result for each row.
// REQUIRES: a plan that was built for these arguments; at least one usable number of rows
// of the kernels for any task.
AttentionTasks MakeAttentionTasks(const cpu::AttentionPlan& plan, const LayerKv& layer, int group,
                                  const Visibility& visibility, const UsableRows& usable,
                                  const WantedTasks& wanted, std::int64_t max_floats);

}  // namespace kvcache::cuda
