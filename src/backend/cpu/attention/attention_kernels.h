// Attention's kernels behind the choice of the instruction set. Three of them: some
// splits of few rows, the merge of such splits, and a block of many rows over all of its splits.
// All perform the chains of docs/design/exactness.md, so it never shows which one ran.
//
// Thread safety: functions of their arguments; concurrent calls need their own workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/kv/kv_blocks.h"
#include "backend/cpu/kv/kv_storage.h"
#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"

namespace kvcache::cpu {

// One query token: where its rows are in q and out, and which positions it sees.
struct QueryToken {
  std::int32_t index = 0;  // in the batch
  Position position = 0;
  PositionRange seen;
};

// What all tasks of one call share.
struct AttentionCall {
  const LayerKv* layer = nullptr;
  const float* q = nullptr;  // [k_dim, heads, batch]
  float* out = nullptr;      // [v_dim, heads, batch]
  int heads = 0;
  float scale = 1.0f;
  float soft_cap = 0.0f;         // 0: none
  const float* sinks = nullptr;  // [heads], or none
  PositionBias bias;

  // What a head adds to the scores of a query's keys in a split.
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

// A row is (token, head of the group): row = token × group + head. Values of a row as kernels
// keep them between steps: the sums in the kernel's own lane order, then max and sum.
constexpr std::int64_t PartialStride(int v_dim) {
  return RoundUp(v_dim, kCellTile) + kCellTile;
}

// Widened values of a row are padded to whole pairs of the widest vectors; a partial's row holds
// as many.
inline constexpr int kValuePadding = 2 * kCellTile;

// Rows whose sums of values in blocks are made at once, and the workspace that this takes, in
// floats.
inline constexpr std::int64_t kMaxBlockValueRows = 8;
constexpr std::int64_t BlockValuesFloats(const LayerKv& layer) {
  return IsKvBlockType(layer.v_type) ? 2 * kMaxBlockValueRows * kSplitPositions * kCellTile : 0;
}

// --- few rows: REQUIRES KvLayout::kTiled.

// Where keys and values are read: a head's cell.
struct CellOfHead {
  int kv_head = 0;
  std::int64_t cell = 0;
};

struct DecodeTask {
  const AttentionCall* call = nullptr;
  int kv_head = 0;
  int splits = 0;  // so many that hold kept positions of `seen`, ascending
  std::span<const HistoryRun> runs;
  std::span<const QueryToken> tokens;
  PositionRange seen;              // by any of the tokens, from the first split on
  bool merge = false;              // no splits come before these: they leave one partial result
  CellOfHead end;                  // behind the last cell
  std::optional<CellOfHead> then;  // what the thread will probably read next
  float* partials = nullptr;       // [splits, or 1 if merged][rows][PartialStride]
  float* workspace = nullptr;      // DecodeWorkspaceFloats of as many rows
};
std::int64_t DecodeWorkspaceFloats(const LayerKv& layer, std::int64_t rows);
void AttendDecode(const DecodeTask& task);

// Of the same rows, one behind the other, ascending.
struct PartialResults {
  float* first = nullptr;  // [rows][PartialStride]
  int count = 0;
  std::int64_t distance = 0;  // floats from one to the next
};

// Of the rows of some tokens.
struct MergeTask {
  const AttentionCall* call = nullptr;
  int kv_head = 0;
  std::span<const QueryToken> tokens;
};
// Merges results into that of the splits before them, [rows][PartialStride].
void MergeSplits(const MergeTask& task, const PartialResults& results, float* into);
// Writes the merged rows to the call's output; overwrites `merged`.
void FinishRows(const MergeTask& task, float* merged);

// --- many rows: any layout.

struct PrefillTask {
  const AttentionCall* call = nullptr;
  int kv_head = 0;
  std::span<const HistoryRun> runs;
  std::span<const QueryToken> tokens;
  float* workspace = nullptr;  // PrefillWorkspaceFloats
};
std::int64_t PrefillWorkspaceFloats(const LayerKv& layer, std::int64_t rows);
void AttendPrefill(const PrefillTask& task);

}  // namespace kvcache::cpu
