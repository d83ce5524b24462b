// Attention's kernels, dispatched to the instruction set in use:
//
//   AttendDecode    some splits of one KV head, for few rows
//   MergeSplits     merges the partial results of decode tasks; FinishRows writes the output
//   AttendPrefill   all splits of one KV head, for a tile of many rows
//
// All perform the chains of docs/design/exactness.md, so the bits do not depend on which one ran.
//
// Thread safety: pure functions of their arguments; concurrent calls need a workspace each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/common/kv_storage.h"
#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"
#include "kvcache/visibility.h"

namespace kvcache::cpu {

// One query token: the index of its rows in q and out, and the positions that it sees.
struct QueryToken {
  std::int32_t index = 0;  // in the batch
  Position position = 0;
  PositionRange seen;
};

// The arguments that all tasks of one call share.
struct AttentionCall {
  const LayerKv* layer = nullptr;
  const float* q = nullptr;  // [k_dim, heads, batch]
  float* out = nullptr;      // [v_dim, heads, batch]
  int heads = 0;
  float scale = 1.0f;
  float soft_cap = 0.0f;         // 0: none
  const float* sinks = nullptr;  // [heads], or none
  PositionBias bias;

  // The bias that `head` adds to the scores of `token` in `split`; empty without a bias.
  RowBias BiasIn(const QueryToken& token, int head, std::int32_t split) const {
    if (bias.values.empty()) return {};
    const int count = bias.past + 1 + bias.future;
    return {bias.values.data() + std::int64_t{head} * count,
            std::int64_t{SplitBase(split)} - token.position + bias.past, count - 1};
  }

  int group() const { return heads / layer->shape.kv_heads; }
  const float* Query(std::int32_t token, int head) const {
    return q + (std::int64_t{token} * heads + head) * layer->shape.k_dim;
  }
  float* Out(std::int32_t token, int head) const {
    return out + (std::int64_t{token} * heads + head) * layer->shape.v_dim;
  }
};

// Floats of one row of a partial result: the weighted sums in the kernel's own lane order, then max
// and sum. A row is a (token, head of the group): row = token × group + head.
constexpr std::int64_t PartialStride(int v_dim) {
  return RoundUp(v_dim, kCellTile) + kCellTile;
}

// The values of a row are padded to a multiple of this when they are widened: a pair of the widest
// vectors. A row of a partial result is at least as long.
inline constexpr int kValuePadding = 2 * kCellTile;

// The most rows whose sums over values of block types are computed at once.
inline constexpr std::int64_t kMaxBlockValueRows = 8;
// Workspace of WeightBlocks, in floats; 0 for float types.
constexpr std::int64_t BlockValuesFloats(const LayerKv& layer) {
  return IsKvBlockType(layer.v_type) ? 2 * kMaxBlockValueRows * kSplitPositions * kCellTile : 0;
}

// --- Decode. REQUIRES: KvLayout::kTiled.

// A place in the memory of keys and values.
struct CellOfHead {
  int kv_head = 0;
  std::int64_t cell = 0;
};

struct DecodeTask {
  const AttentionCall* call = nullptr;
  int kv_head = 0;
  int splits = 0;  // the first so many splits that hold retained positions of `seen`
  std::span<const HistoryRun> runs;
  std::span<const QueryToken> tokens;
  PositionRange seen;              // positions that any token sees, from the first split on
  bool merge = false;              // true for a row's first splits: they leave one partial result
  CellOfHead end;                  // one past the last cell that the task reads
  std::optional<CellOfHead> next;  // where the thread probably reads next, for prefetching
  float* partials = nullptr;       // output: [splits, or 1 with merge][rows][PartialStride]
  float* workspace = nullptr;      // DecodeWorkspaceFloats(layer, rows)
};
std::int64_t DecodeWorkspaceFloats(const LayerKv& layer, std::int64_t rows);
// Reads the keys and values of the task's splits once and writes the partial results of all rows.
void AttendDecode(const DecodeTask& task);

// Partial results of the same rows, in ascending order of their splits.
struct PartialResults {
  float* first = nullptr;  // [rows][PartialStride]
  int count = 0;
  std::int64_t distance = 0;  // floats from one result to the next
};

// The rows of `tokens` for one KV head.
struct MergeTask {
  const AttentionCall* call = nullptr;
  int kv_head = 0;
  std::span<const QueryToken> tokens;
};
// Merges `results` in ascending order into `into` [rows][PartialStride], the result of the splits
// before them.
void MergeSplits(const MergeTask& task, const PartialResults& results, float* into);
// Applies the sink, divides by the sum and writes the rows to the call's output. Overwrites
// `merged` [rows][PartialStride].
void FinishRows(const MergeTask& task, float* merged);

// --- Prefill. Any layout.

struct PrefillTask {
  const AttentionCall* call = nullptr;
  int kv_head = 0;
  std::span<const HistoryRun> runs;
  std::span<const QueryToken> tokens;
  float* workspace = nullptr;  // PrefillWorkspaceFloats(layer, rows)
};
std::int64_t PrefillWorkspaceFloats(const LayerKv& layer, std::int64_t rows);
// Attends the tokens' rows to all splits that they see and writes the call's output.
void AttendPrefill(const PrefillTask& task);

}  // namespace kvcache::cpu
