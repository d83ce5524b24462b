// Attention of many rows: prefill. One task is one KV head and a block of query tokens; it
// goes through the block's splits in ascending order, widens each split's keys and values to
// f32 once, and multiplies them with groups of rows held in registers.
//
// Also the path for the plain layouts: widening puts keys and values of any layout into the
// same form, indexed by position:
//
//   keys    [k_dim][kScoreStride]      values  [kSplitPositions][padded v_dim]
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_many.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/attention_micro-inl.h"
#include "hwy/highway.h"

#ifndef KVCACHE_BACKEND_CPU_ATTENTION_MANY_ONCE_
#define KVCACHE_BACKEND_CPU_ATTENTION_MANY_ONCE_
namespace kvcache::cpu {

// Rows of a group: with two vectors of keys or values, what fits into the registers.
inline constexpr int kMaxGroupRows = 12;
// Values are padded to whole pairs of the widest vectors.
inline constexpr int kValuePadding = 2 * kCellTile;

// A block's scratch, cut from one piece.
struct BlockBuffers {
  float* keys;     // [k_dim][kScoreStride]
  float* values;   // [kSplitPositions][v_padded]
  float* scores;   // [kMaxGroupRows][kScoreStride]
  float* partial;  // [kMaxGroupRows][v_padded]: one split's weighted sums
  float* q;        // [groups][k_dim][group rows]
  float* sums;     // [rows][v_padded]: over the splits so far
  float* row_max;  // [rows]
  float* row_sum;  // [rows]
};

}  // namespace kvcache::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kGroupRows = kManyRegisters ? kMaxGroupRows : 6;
inline constexpr int kVectorsAtOnce = 2;
inline constexpr int kKeysAtOnce = kVectorsAtOnce * kLanes;

struct Block {
  const AttentionCall* call;
  const BlockTask* task;
  BlockBuffers buffers;
  int rows;
  int v_padded;
};

// --- widening

template <DType kType>
void WidenTiledKeys(const Block& block, const Segment& segment) {
  const LayerKv& layer = *block.call->layer;
  const int k_dim = layer.shape.k_dim;
  const auto* const head =
      reinterpret_cast<const Storage<kType>*>(layer.k) + HeadKeys(layer, block.task->kv_head);
  const DF d;
  int position = segment.begin - segment.cell % kCellTile;
  const Storage<kType>* tile = head + KeyTile(layer, segment.cell);
  for (; position < segment.end; position += kCellTile, tile += k_dim * kCellTile) {
    // Before the segment may lie another one's keys; what is written past it is either
    // overwritten by the next or never used.
    const int skip = std::max(0, segment.begin - position);
    for (int i = 0; i < k_dim; ++i) {
      float* const to = block.buffers.keys + i * kScoreStride + position + skip;
      if (skip != 0) {
        HWY_ALIGN float wide[kCellTile];
        WidenRow<kType>(tile + i * kCellTile, kCellTile, wide);
        std::copy(wide + skip, wide + kCellTile, to);
        continue;
      }
      for (int lane = 0; lane < kCellTile; lane += kLanes) {
        hn::StoreU(LoadWide<kType>(d, tile + i * kCellTile + lane), d, to + lane);
      }
    }
  }
}

template <DType kType>
void WidenPlainKeys(const Block& block, const Segment& segment) {
  const LayerKv& layer = *block.call->layer;
  const std::int64_t k_dim = layer.shape.k_dim;
  const auto* const keys = reinterpret_cast<const Storage<kType>*>(layer.k);
  const hn::CappedTag<float, 1> d1;
  for (int position = segment.begin; position < segment.end; ++position) {
    const std::int64_t cell = segment.cell + (position - segment.begin);
    const auto* const key = keys + (cell * layer.shape.kv_heads + block.task->kv_head) * k_dim;
    for (std::int64_t i = 0; i < k_dim; ++i) {
      block.buffers.keys[i * kScoreStride + position] = hn::GetLane(LoadWide<kType>(d1, key + i));
    }
  }
}

template <DType kType>
void WidenKeys(const Block& block, std::span<const Segment> segments) {
  const bool tiled = block.call->layer->layout == KvLayout::kTiled;
  for (const Segment& segment : segments) {
    if (tiled) {
      WidenTiledKeys<kType>(block, segment);
    } else {
      WidenPlainKeys<kType>(block, segment);
    }
  }
}

// Rows of values: the tiled and the token-major layout differ in where a cell's row is.
template <DType kType>
void WidenValueRows(const Block& block, const Segment& segment) {
  const LayerKv& layer = *block.call->layer;
  const std::int64_t v_dim = layer.shape.v_dim;
  const int kv_head = block.task->kv_head;
  const bool tiled = layer.layout == KvLayout::kTiled;
  const std::int64_t first = tiled ? HeadValues(layer, kv_head) : kv_head * v_dim;
  const std::int64_t stride = tiled ? v_dim : v_dim * layer.shape.kv_heads;
  const auto* const values = reinterpret_cast<const Storage<kType>*>(layer.v) + first;
  for (int position = segment.begin; position < segment.end; ++position) {
    const std::int64_t cell = segment.cell + (position - segment.begin);
    WidenRow<kType>(values + cell * stride, static_cast<std::size_t>(v_dim),
                    block.buffers.values + position * block.v_padded);
  }
}

template <DType kType>
void WidenTransposedValues(const Block& block, const Segment& segment) {
  const LayerKv& layer = *block.call->layer;
  const hn::CappedTag<float, 1> d1;
  const auto* const head =
      reinterpret_cast<const Storage<kType>*>(layer.v) + HeadValues(layer, block.task->kv_head);
  for (int i = 0; i < layer.shape.v_dim; ++i) {
    const auto* const from = head + i * layer.cells + segment.cell - segment.begin;
    for (int position = segment.begin; position < segment.end; ++position) {
      block.buffers.values[position * block.v_padded + i] =
          hn::GetLane(LoadWide<kType>(d1, from + position));
    }
  }
}

template <DType kType>
void WidenValues(const Block& block, std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    if (block.call->layer->v_transposed) {
      WidenTransposedValues<kType>(block, segment);
    } else {
      WidenValueRows<kType>(block, segment);
    }
  }
}

void WidenSplit(const Block& block, std::span<const Segment> segments) {
  switch (block.call->layer->k_type) {
    case DType::kF16: WidenKeys<DType::kF16>(block, segments); break;
    case DType::kBF16: WidenKeys<DType::kBF16>(block, segments); break;
    default: WidenKeys<DType::kF32>(block, segments); break;
  }
  switch (block.call->layer->v_type) {
    case DType::kF16: WidenValues<DType::kF16>(block, segments); break;
    case DType::kBF16: WidenValues<DType::kBF16>(block, segments); break;
    default: WidenValues<DType::kF32>(block, segments); break;
  }
}

// --- one group of rows and one split

// scores[r][0, kKeysAtOnce) = Σ_d q[d][r] keys[d][…]
void ScoreKeys(const float* HWY_RESTRICT keys, int k_dim, const float* HWY_RESTRICT q,
               float* HWY_RESTRICT scores) {
  const DF d;
  VF sum[kGroupRows][kVectorsAtOnce];
  KVCACHE_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kVectorsAtOnce; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int i = 0; i < k_dim; ++i, keys += kScoreStride, q += kGroupRows) {
    VF key[kVectorsAtOnce];
    KVCACHE_UNROLL
    for (int v = 0; v < kVectorsAtOnce; ++v) key[v] = hn::Load(d, keys + v * kLanes);
    KVCACHE_UNROLL
    for (int r = 0; r < kGroupRows; ++r) {
      const VF query = hn::Set(d, q[r]);
      KVCACHE_UNROLL
      for (int v = 0; v < kVectorsAtOnce; ++v) sum[r][v] = hn::MulAdd(query, key[v], sum[r][v]);
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < kGroupRows; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kVectorsAtOnce; ++v) {
      hn::Store(sum[r][v], d, scores + r * kScoreStride + v * kLanes);
    }
  }
}

// What each row of a group sees of a split, and what any of them sees.
struct GroupRanges {
  RowRange rows[kGroupRows] = {};
  RowRange any{kSplitPositions, 0};
};

GroupRanges RangesOfGroup(const Block& block, int first_row, int count, std::int32_t split,
                          std::span<const Segment> segments) {
  const int group = block.call->group();
  GroupRanges ranges;
  for (int r = 0; r < count; ++r) {
    const int row = first_row + r;
    if (r > 0 && row % group != 0) {
      ranges.rows[r] = ranges.rows[r - 1];  // the same token
    } else {
      const QueryToken& token = block.task->tokens[static_cast<std::size_t>(row / group)];
      ranges.rows[r] = RangeInSplit(token.seen, split, segments);
    }
    if (ranges.rows[r].empty()) continue;
    ranges.any.begin = std::min(ranges.any.begin, ranges.rows[r].begin);
    ranges.any.end = std::max(ranges.any.end, ranges.rows[r].end);
  }
  return ranges;
}

void AttendGroup(const Block& block, int first_row, std::int32_t split,
                 std::span<const Segment> segments) {
  const BlockBuffers& buffers = block.buffers;
  const int k_dim = block.call->layer->shape.k_dim;
  const int count = std::min(kGroupRows, block.rows - first_row);
  GroupRanges ranges = RangesOfGroup(block, first_row, count, split, segments);
  if (ranges.any.empty()) return;
  const float* const q = buffers.q + static_cast<std::int64_t>(first_row) * k_dim;
  for (int key = ranges.any.begin / kKeysAtOnce * kKeysAtOnce; key < ranges.any.end;
       key += kKeysAtOnce) {
    ScoreKeys(buffers.keys + key, k_dim, q, buffers.scores + key);
  }
  SplitSums sums[kGroupRows];
  for (int r = 0; r < count; ++r) {
    if (ranges.rows[r].empty()) continue;
    sums[r] = SoftmaxRow(buffers.scores + r * kScoreStride, ranges.rows[r], segments,
                         block.call->soft_cap);
    if (sums[r].max == kHidden) ranges.rows[r] = {};
  }
  std::array<Segment, kSplitPositions> by_position;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    by_position[i] = {segments[i].begin, segments[i].end, segments[i].begin};
  }
  const SplitValues<DType::kF32> values{buffers.values,
                                        static_cast<std::size_t>(block.v_padded),
                                        block.v_padded,
                                        kSplitPositions,
                                        {by_position.data(), segments.size()}};
  WeightRows<DType::kF32, kGroupRows, kVectorsAtOnce>(
      values, {ranges.rows, static_cast<std::size_t>(count)}, buffers.scores, buffers.partial,
      static_cast<std::size_t>(block.v_padded));
  for (int r = 0; r < count; ++r) {
    const int row = first_row + r;
    SplitSums into{buffers.row_max[row], buffers.row_sum[row]};
    MergeSplit(sums[r], buffers.partial + r * block.v_padded, block.v_padded, into,
               buffers.sums + static_cast<std::int64_t>(row) * block.v_padded);
    buffers.row_max[row] = into.max;
    buffers.row_sum[row] = into.sum;
  }
}

// --- the block

void StartBlock(const Block& block) {
  const AttentionCall& call = *block.call;
  const int group = call.group();
  const int k_dim = call.layer->shape.k_dim;
  for (int first = 0; first < block.rows; first += kGroupRows) {
    const int count = std::min(kGroupRows, block.rows - first);
    const float* queries[kGroupRows] = {};
    for (int r = 0; r < count; ++r) {
      const int row = first + r;
      const QueryToken& token = block.task->tokens[static_cast<std::size_t>(row / group)];
      queries[r] = call.Query(token.index, block.task->kv_head * group + row % group);
    }
    PackQueries<kGroupRows>(queries, count, k_dim, call.scale,
                            block.buffers.q + static_cast<std::int64_t>(first) * k_dim);
  }
  std::fill_n(block.buffers.row_max, block.rows, kHidden);
  std::fill_n(block.buffers.row_sum, block.rows, 0.0f);
  // Lanes past v_dim are multiplied but never used.
  std::fill_n(block.buffers.values, kSplitPositions * block.v_padded, 0.0f);
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

BlockBuffers CutScratch(float* scratch, const KvShape& shape, int rows, int v_padded) {
  const std::int64_t q_rows = RoundUp(rows, kGroupRows);
  BlockBuffers buffers;
  buffers.keys = scratch;
  buffers.values = buffers.keys + std::int64_t{shape.k_dim} * kScoreStride;
  buffers.scores = buffers.values + std::int64_t{kSplitPositions} * v_padded;
  buffers.partial = buffers.scores + kMaxGroupRows * kScoreStride;
  buffers.sums = buffers.partial + kMaxGroupRows * v_padded;
  buffers.q = buffers.sums + std::int64_t{rows} * v_padded;
  buffers.row_max = buffers.q + q_rows * shape.k_dim;
  buffers.row_sum = buffers.row_max + rows;
  return buffers;
}

void AttendBlock(const BlockTask& task) {
  const KvShape& shape = task.call->layer->shape;
  const int rows = static_cast<int>(task.tokens.size()) * task.call->group();
  const int v_padded = RoundUp(shape.v_dim, kValuePadding);
  const Block block{task.call, &task, CutScratch(task.scratch, shape, rows, v_padded), rows,
                    v_padded};
  PositionRange seen{kEndOfSequence, 0};
  for (const QueryToken& token : task.tokens) {
    seen.begin = std::min(seen.begin, token.seen.begin);
    seen.end = std::max(seen.end, token.seen.end);
  }
  StartBlock(block);
  for (SplitWalker walker(task.runs, seen); walker.Next();) {
    WidenSplit(block, walker.segments());
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

std::int64_t BlockScratchFloats(const KvShape& shape, std::int64_t rows) {
  const std::int64_t v_padded = RoundUp(shape.v_dim, kValuePadding);
  const std::int64_t split = shape.k_dim * std::int64_t{kScoreStride} + kSplitPositions * v_padded;
  const std::int64_t group = kMaxGroupRows * (kScoreStride + v_padded);
  const std::int64_t all = rows * (v_padded + 2) + (rows + kMaxGroupRows) * shape.k_dim;
  return RoundUp<std::int64_t>(split + group + all, kCellTile);
}

void AttendBlock(const BlockTask& task) {
  HWY_DYNAMIC_DISPATCH(AttendBlock)(task);
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
