// Attention of many rows: prefill. One task is one KV head and a block of query tokens; it
// goes through the block's splits in ascending order, widens each split's keys and values once (to
// f32, or of block types to bytes), and multiplies them with groups of rows held in registers.
//
// Also the path for the plain layouts: widening hides where keys and values lie.
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/attention_prefill.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention/attention_block_keys-inl.h"
#include "backend/cpu/attention/attention_block_values-inl.h"
#include "backend/cpu/attention/attention_block_widen-inl.h"
#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_widen-inl.h"
#include "hwy/highway.h"

#ifndef KVCACHE_BACKEND_CPU_ATTENTION_MANY_ONCE_
#define KVCACHE_BACKEND_CPU_ATTENTION_MANY_ONCE_
namespace kvcache::cpu {

// Rows of a group: with two vectors of keys or values, what fits into the registers.
inline constexpr int kMaxGroupRows = 12;
// A block's scratch, cut from one piece.
struct BlockBuffers {
  float* keys;     // one split's, see attention_widen-inl.h
  float* values;   // likewise
  float* scores;   // [kMaxGroupRows][kScoreStride]
  float* partial;  // [kMaxGroupRows][v_padded]: one split's weighted sums
  float* room;     // BlockRoomFloats
  float* q;        // packed queries, k_dim floats a row: [groups][k_dim][group rows], or codes
  float* turned;   // [k_dim]
  float* sums;     // [rows][v_padded]: over the splits so far
  float* row_max;  // [rows]
  float* row_sum;  // [rows]
};

}  // namespace kvcache::cpu
#endif

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kGroupRows = kManyRegisters ? kMaxGroupRows : 6;
// Rows whose integer sums and scores fit into the registers with two tiles of keys in blocks.
inline constexpr int kBlockRows = 6;
static_assert(kGroupRows % kBlockRows == 0);
inline constexpr int kValueRows = kGroupRows % 4 == 0 ? 4 : 2;

struct Block {
  const AttentionCall* call;
  const BlockTask* task;
  BlockBuffers buffers;
  int rows;
  int v_padded;

  WideSplit Wide() const {
    return {call->layer, task->kv_head, buffers.keys, buffers.values, v_padded};
  }
};

// --- one group of rows and one split

// scores[r][0, W) = Σ_d q[d][r] keys[d][0, W)
void ScoreKeys(const float* HWY_RESTRICT keys, int k_dim, const float* HWY_RESTRICT q,
               float* HWY_RESTRICT scores) {
  constexpr int kVectors = kWide / kLanes;
  const DF d;
  VF sum[kGroupRows][kVectors];
  KVCACHE_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int i = 0; i < k_dim; ++i, keys += kWide, q += kGroupRows) {
    VF key[kVectors];
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) key[v] = hn::Load(d, keys + v * kLanes);
    KVCACHE_UNROLL
    for (int r = 0; r < kGroupRows; ++r) {
      const VF query = hn::Set(d, q[r]);
      KVCACHE_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(query, key[v], sum[r][v]);
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sum[r][v], d, scores + r * kScoreStride + v * kLanes);
    }
  }
}

// Rows [first, first + count) of a block in one split: what each sees, and what any does.
struct GroupInSplit {
  int first = 0;
  int count = 0;
  RowRange ranges[kGroupRows] = {};
  RowRange any{kSplitPositions, 0};
  SplitSums sums[kGroupRows] = {};
};

void FindRanges(const Block& block, std::int32_t split, std::span<const Segment> segments,
                GroupInSplit& rows) {
  const int group = block.call->group();
  for (int r = 0; r < rows.count; ++r) {
    const int row = rows.first + r;
    if (r > 0 && row % group != 0) {
      rows.ranges[r] = rows.ranges[r - 1];  // the same token
    } else {
      const QueryToken& token = block.task->tokens[static_cast<std::size_t>(row / group)];
      rows.ranges[r] = RangeInSplit(token.seen, split, segments);
    }
    if (rows.ranges[r].empty()) continue;
    rows.any.begin = std::min(rows.any.begin, rows.ranges[r].begin);
    rows.any.end = std::max(rows.any.end, rows.ranges[r].end);
  }
}

// Keys in blocks: two tiles of sixteen positions at a time.
void ScoreBlockGroup(const Block& block, const GroupInSplit& rows) {
  constexpr int kKeys = 2 * kCellTile;
  const std::int64_t k_dim = block.call->layer->shape.k_dim;
  const auto* const keys = reinterpret_cast<const std::uint8_t*>(block.buffers.keys);
  for (int row = 0; row < rows.count; row += kBlockRows) {
    const BlockQueries<kBlockRows> q(block.buffers.q + (rows.first + row) * k_dim, k_dim);
    for (int key = rows.any.begin / kKeys * kKeys; key < rows.any.end; key += kKeys) {
      ScoreBlockTiles<DType::kQ8_0, kBlockRows, 2, Stream::kScratch>(
          keys + key / kCellTile * WideTileBytes(k_dim), k_dim, q,
          block.buffers.scores + row * kScoreStride + key, kScoreStride);
    }
  }
}

void ScoreGroup(const Block& block, const GroupInSplit& rows) {
  if (IsKvBlockType(block.call->layer->k_type)) return ScoreBlockGroup(block, rows);
  const std::int64_t k_dim = block.call->layer->shape.k_dim;
  for (int key = rows.any.begin / kWide * kWide; key < rows.any.end; key += kWide) {
    ScoreKeys(block.buffers.keys + key * k_dim, static_cast<int>(k_dim),
              block.buffers.q + rows.first * k_dim, block.buffers.scores + key);
  }
}

// All values of R rows' weighted sums over the segments' part of `range`.
template <int R>
void WeightRows(const Block& block, std::span<const Segment> segments, RowRange range, int row) {
  WeightWide<R>(block.Wide(), segments, range, block.buffers.scores + row * kScoreStride,
                block.buffers.partial + std::int64_t{row} * block.v_padded,
                static_cast<std::size_t>(block.v_padded));
}

// Values in blocks, which lie by position.
void WeightBlockGroup(const Block& block, const GroupInSplit& rows) {
  const LayerKv& layer = *block.call->layer;
  const ValueTiles values{reinterpret_cast<const std::uint8_t*>(block.buffers.values),
                          layer.shape.v_dim, CodeOffset(layer.v_type), nullptr};
  const Segment all{rows.any.begin, rows.any.end, rows.any.begin};
  const auto stride = static_cast<std::size_t>(block.v_padded);
  for (int row = 0; row < rows.count; row += kValueRows) {
    WeightBlocks<DType::kQ8_0, kValueRows, Stream::kScratch>(
        values,
        {{&all, 1},
         {rows.ranges + row, kValueRows},
         block.buffers.scores + row * kScoreStride,
         block.buffers.partial + row * block.v_padded,
         stride},
        block.buffers.room);
  }
}

void WeightGroup(const Block& block, std::span<const Segment> segments, const GroupInSplit& rows) {
  if (IsKvBlockType(block.call->layer->v_type)) return WeightBlockGroup(block, rows);
  std::fill_n(block.buffers.partial, std::int64_t{kGroupRows} * block.v_padded, 0.0f);
  ForRanges(
      {rows.ranges, static_cast<std::size_t>(rows.count)},
      [&](RowRange range) HWY_ATTR { WeightRows<kGroupRows>(block, segments, range, 0); },
      [&](std::size_t r, RowRange range)
          HWY_ATTR { WeightRows<1>(block, segments, range, static_cast<int>(r)); });
}

void MergeGroup(const Block& block, const GroupInSplit& rows) {
  const BlockBuffers& buffers = block.buffers;
  for (int r = 0; r < rows.count; ++r) {
    const std::int64_t row = rows.first + r;
    SplitSums into{buffers.row_max[row], buffers.row_sum[row]};
    MergeSplit(rows.sums[r], buffers.partial + std::int64_t{r} * block.v_padded, block.v_padded,
               into, buffers.sums + row * block.v_padded);
    buffers.row_max[row] = into.max;
    buffers.row_sum[row] = into.sum;
  }
}

RowBias BiasOf(const Block& block, int row, std::int32_t split) {
  const AttentionCall& call = *block.call;
  const int group = call.group();
  const QueryToken& token = block.task->tokens[static_cast<std::size_t>(row / group)];
  return call.BiasIn(token, block.task->kv_head * group + row % group, split);
}

void AttendGroup(const Block& block, int first, std::int32_t split,
                 std::span<const Segment> segments) {
  GroupInSplit rows{.first = first, .count = std::min(kGroupRows, block.rows - first)};
  FindRanges(block, split, segments, rows);
  if (rows.any.empty()) return;
  ScoreGroup(block, rows);
  for (int r = 0; r < rows.count; ++r) {
    if (rows.ranges[r].empty()) continue;
    rows.sums[r] = SoftmaxRow(block.buffers.scores + r * kScoreStride, rows.ranges[r], segments,
                              block.call->soft_cap, BiasOf(block, first + r, split), [] {});
    if (rows.sums[r].max == kHidden) rows.ranges[r] = {};
  }
  WeightGroup(block, segments, rows);
  MergeGroup(block, rows);
}

// --- the block

template <int R>
void PackGroup(const Block& block, int first) {
  const AttentionCall& call = *block.call;
  const int group = call.group();
  const std::int64_t k_dim = call.layer->shape.k_dim;
  const int count = std::min(R, block.rows - first);
  const float* queries[R] = {};
  for (int r = 0; r < count; ++r) {
    const int row = first + r;
    const QueryToken& token = block.task->tokens[static_cast<std::size_t>(row / group)];
    queries[r] = call.Query(token.index, block.task->kv_head * group + row % group);
  }
  float* const q = block.buffers.q + first * k_dim;
  if (IsKvBlockType(call.layer->k_type)) {
    PackBlockQueries<R>(queries, count, k_dim, call.scale, CodeOffset(call.layer->k_type),
                        block.buffers.turned, q);
  } else {
    PackQueries<R>(queries, count, static_cast<int>(k_dim), call.scale, q);
  }
}

void StartBlock(const Block& block) {
  const AttentionCall& call = *block.call;
  if (IsKvBlockType(call.layer->k_type)) {
    for (int first = 0; first < block.rows; first += kBlockRows) {
      PackGroup<kBlockRows>(block, first);
    }
  } else {
    for (int first = 0; first < block.rows; first += kGroupRows) {
      PackGroup<kGroupRows>(block, first);
    }
  }
  std::fill_n(block.buffers.row_max, block.rows, kHidden);
  std::fill_n(block.buffers.row_sum, block.rows, 0.0f);
  // Lanes past v_dim are multiplied but never used; they must not be slow to multiply.
  if (block.v_padded != call.layer->shape.v_dim) {
    std::fill_n(block.buffers.values, kSplitPositions * block.v_padded, 0.0f);
  }
}

void FinishBlock(const Block& block) {
  const AttentionCall& call = *block.call;
  const int group = call.group();
  for (int row = 0; row < block.rows; ++row) {
    float* const sums = block.buffers.sums + static_cast<std::int64_t>(row) * block.v_padded;
    const int head = block.task->kv_head * group + row % group;
    FinishRow({block.buffers.row_max[row], block.buffers.row_sum[row]},
              call.sinks == nullptr ? nullptr : call.sinks + head, block.v_padded, sums);
    const QueryToken& token = block.task->tokens[static_cast<std::size_t>(row / group)];
    std::copy_n(sums, call.layer->shape.v_dim, call.Out(token.index, head));
  }
}

BlockBuffers CutScratch(float* scratch, const LayerKv& layer, int rows, int v_padded) {
  const KvShape& shape = layer.shape;
  const std::int64_t q_rows = RoundUp(rows, kGroupRows);
  BlockBuffers buffers;
  buffers.keys = scratch;
  buffers.values = buffers.keys + std::int64_t{kSplitPositions} * shape.k_dim;
  buffers.scores = buffers.values + std::int64_t{kSplitPositions} * v_padded;
  buffers.partial = buffers.scores + kMaxGroupRows * kScoreStride;
  buffers.room = buffers.partial + kMaxGroupRows * v_padded;
  buffers.sums = buffers.room + BlockRoomFloats(layer);
  buffers.q = buffers.sums + std::int64_t{rows} * v_padded;
  buffers.turned = buffers.q + q_rows * shape.k_dim;
  buffers.row_max = buffers.turned + RoundUp(shape.k_dim, kCellTile);
  buffers.row_sum = buffers.row_max + rows;
  return buffers;
}

void AttendBlock(const BlockTask& task) {
  const KvShape& shape = task.call->layer->shape;
  const int rows = static_cast<int>(task.tokens.size()) * task.call->group();
  const int v_padded = RoundUp(shape.v_dim, kValuePadding);
  const Block block{task.call, &task, CutScratch(task.scratch, *task.call->layer, rows, v_padded),
                    rows, v_padded};
  PositionRange seen{kEndOfSequence, 0};
  for (const QueryToken& token : task.tokens) {
    seen.begin = std::min(seen.begin, token.seen.begin);
    seen.end = std::max(seen.end, token.seen.end);
  }
  StartBlock(block);
  for (SplitWalker walker(task.runs, seen); walker.Next();) {
    WidenSplitKeys(block.Wide(), walker.segments());
    WidenSplitValues(block.Wide(), walker.segments());
    for (int first = 0; first < rows; first += kGroupRows) {
      AttendGroup(block, first, walker.split(), walker.segments());
    }
  }
  FinishBlock(block);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu {
HWY_EXPORT(AttendBlock);

std::int64_t BlockScratchFloats(const LayerKv& layer, std::int64_t rows) {
  const KvShape& shape = layer.shape;
  const std::int64_t v_padded = RoundUp(shape.v_dim, kValuePadding);
  const std::int64_t split = kSplitPositions * (shape.k_dim + v_padded);
  const std::int64_t group = kMaxGroupRows * (kScoreStride + v_padded);
  const std::int64_t all = rows * (v_padded + 2) + (rows + kMaxGroupRows) * shape.k_dim +
                           RoundUp(shape.k_dim, kCellTile);
  return RoundUp<std::int64_t>(split + group + BlockRoomFloats(layer) + all, kCellTile);
}

void AttendBlock(const BlockTask& task) {
  HWY_DYNAMIC_DISPATCH(AttendBlock)(task);
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
