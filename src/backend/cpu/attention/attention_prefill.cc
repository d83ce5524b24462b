// Prefill attention: many rows, bound by arithmetic. A task is one KV head and a tile of query
// tokens. It visits the splits that the tile sees in ascending order. For each split:
//
//   1. the split's keys and values are widened once, to f32 or, for block types, to bytes
//   2. for each group of up to 12 rows: scores, softmax, weighted sums and the merge into the rows'
//      results, with the group's sums in registers
//
// The widening pays since all groups of the tile reuse its result from the second-level cache. It
// also hides the layout, so this is the path for the plain layouts too.
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/attention_prefill.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_widen-inl.h"
#include "backend/cpu/attention/block/key_tiles-inl.h"
#include "backend/cpu/attention/block/keys-inl.h"
#include "backend/cpu/attention/block/values-inl.h"
#include "backend/cpu/attention/block/widen-inl.h"
#include "backend/cpu/cpu_tiles.h"
#include "backend/cpu/simd/highway-inl.h"

#ifndef KVCACHE_BACKEND_CPU_ATTENTION_PREFILL_ONCE_
#define KVCACHE_BACKEND_CPU_ATTENTION_PREFILL_ONCE_
namespace kvcache::cpu {

// The most rows of a group on any target: their sums fit into the registers with two vectors of
// keys or values.
inline constexpr int kMaxGroupRows = 12;
// The parts of a task's workspace.
struct TileBuffers {
  float* keys;          // one split's, see attention_widen-inl.h
  float* values;        // one split's, see attention_widen-inl.h
  float* scores;        // [kMaxGroupRows][kScoreStride]
  float* partial;       // [kMaxGroupRows][v_padded]: one split's weighted sums
  float* block_values;  // BlockValuesFloats
  float* q;             // packed queries, k_dim floats a row: [groups][k_dim][group rows], or codes
  float* transformed;   // [k_dim]
  float* sums;          // [rows][v_padded]: over the splits so far
  float* row_max;       // [rows]
  float* row_sum;       // [rows]
};

}  // namespace kvcache::cpu
#endif

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kGroupRows = kManyRegisters ? kMaxGroupRows : 6;
// Rows whose integer sums and scores fit into the registers with two tiles of keys of block types.
inline constexpr int kBlockKeyRows = 6;
static_assert(kGroupRows % kBlockKeyRows == 0);
#if HWY_TARGET == HWY_AVX3_DL
static_assert(kGroupRows == kKeyTileRows);
// Fewer rows leave so much of the matrix tiles empty that vectors are as fast.
inline constexpr int kMinKeyTileRows = 7;
#endif
inline constexpr int kValueRows = kGroupRows % 4 == 0 ? 4 : 3;

struct QueryTile {
  const AttentionCall* call;
  const PrefillTask* task;
  TileBuffers buffers;
  int rows;
  int v_padded;
  bool has_key_tiles = false;  // matrix tiles compute the scores

  WideSplit Wide() const {
    return {call->layer, task->kv_head, buffers.keys, buffers.values, v_padded};
  }
};

// --- One group of rows and one split

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

// Rows [first, first + count) of the tile in one split: the range that each row sees, and the range
// that any row sees.
struct GroupInSplit {
  int first = 0;
  int count = 0;
  RowRange ranges[kGroupRows] = {};
  RowRange any{kSplitPositions, 0};
  SplitSums sums[kGroupRows] = {};
};

void FindRanges(const QueryTile& tile, std::int32_t split, std::span<const Segment> segments,
                GroupInSplit& rows) {
  const int group = tile.call->group();
  for (int r = 0; r < rows.count; ++r) {
    const int row = rows.first + r;
    if (r > 0 && row % group != 0) {
      rows.ranges[r] = rows.ranges[r - 1];  // the same token
    } else {
      const QueryToken& token = tile.task->tokens[static_cast<std::size_t>(row / group)];
      rows.ranges[r] = RangeInSplit(token.seen, split, segments);
    }
    if (rows.ranges[r].empty()) continue;
    rows.any.begin = std::min(rows.any.begin, rows.ranges[r].begin);
    rows.any.end = std::max(rows.any.end, rows.ranges[r].end);
  }
}

// Scores against keys of block types, two tiles of sixteen positions at a time. The codes of all
// types are bytes here; none exceeds kMaxCode.
template <int kMaxCode, bool kLatent = false>
void ScoreBlockGroup(const QueryTile& tile, const GroupInSplit& rows) {
  constexpr int kKeys = 2 * kCellTile;
  const std::int64_t k_dim = tile.call->layer->shape.k_dim;
  const std::int64_t latent = LatentBlocks(*tile.call->layer);
  const auto* const keys = reinterpret_cast<const std::uint8_t*>(tile.buffers.keys);
  for (int row = 0; row < rows.count; row += kBlockKeyRows) {
    const BlockQueries<kBlockKeyRows> q(tile.buffers.q + (rows.first + row) * k_dim, k_dim, latent);
    for (int key = rows.any.begin / kKeys * kKeys; key < rows.any.end; key += kKeys) {
      ScoreBlockTiles<DType::kQ8_0, kBlockKeyRows, 2, Stream::kWorkspace, kMaxCode, kLatent>(
          keys + key / kCellTile * WideTileBytes(k_dim), k_dim, q,
          tile.buffers.scores + row * kScoreStride + key, kScoreStride);
    }
  }
}

#if HWY_TARGET == HWY_AVX3_DL
// The same by matrix tiles, for all rows of the group.
void ScoreGroupByTiles(const QueryTile& tile, const GroupInSplit& rows) {
  constexpr int kKeys = 2 * kCellTile;
  const std::int64_t k_dim = tile.call->layer->shape.k_dim;
  const BlockQueries<kKeyTileRows> q(tile.buffers.q + rows.first * k_dim, k_dim);
  ScoreKeyTiles(q, rows.count, reinterpret_cast<const std::uint8_t*>(tile.buffers.keys), k_dim,
                rows.any.begin / kKeys * kKeys, RoundUp(rows.any.end, kKeys), tile.buffers.scores,
                kScoreStride);
}
#endif

void ScoreGroup(const QueryTile& tile, const GroupInSplit& rows) {
  const DType k_type = tile.call->layer->k_type;
#if HWY_TARGET == HWY_AVX3_DL
  if (tile.has_key_tiles) return ScoreGroupByTiles(tile, rows);
#endif
  if (HoldsLatents(*tile.call->layer))
    return ScoreBlockGroup<MaxCode(DType::kQ8_0), true>(tile, rows);
  if (k_type == DType::kQ8_0) return ScoreBlockGroup<MaxCode(DType::kQ8_0)>(tile, rows);
  if (k_type == DType::kQ4_0) return ScoreBlockGroup<MaxCode(DType::kQ4_0)>(tile, rows);
  const std::int64_t k_dim = tile.call->layer->shape.k_dim;
  for (int key = rows.any.begin / kWide * kWide; key < rows.any.end; key += kWide) {
    ScoreKeys(tile.buffers.keys + key * k_dim, static_cast<int>(k_dim),
              tile.buffers.q + rows.first * k_dim, tile.buffers.scores + key);
  }
}

// Adds the weighted sums of R rows over the positions of `range` that are in segments.
template <int R>
void WeightRows(const QueryTile& tile, std::span<const Segment> segments, RowRange range, int row) {
  WeightWide<R>(tile.Wide(), segments, range, tile.buffers.scores + row * kScoreStride,
                tile.buffers.partial + std::int64_t{row} * tile.v_padded,
                static_cast<std::size_t>(tile.v_padded));
}

// Weighted sums of values of block types, which GatherBlocks or GatherLatents has indexed by position.
template <bool kOneScale>
void WeightBlockGroup(const QueryTile& tile, const GroupInSplit& rows) {
  const LayerKv& layer = *tile.call->layer;
  const ValueTiles values{reinterpret_cast<const std::uint8_t*>(tile.buffers.values),
                          layer.shape.v_dim, CodeOffset(layer.v_type), nullptr};
  const Segment all{rows.any.begin, rows.any.end, rows.any.begin};
  const auto stride = static_cast<std::size_t>(tile.v_padded);
  for (int row = 0; row < rows.count; row += kValueRows) {
    WeightBlocks<DType::kQ8_0, kValueRows, Stream::kWorkspace, kOneScale>(
        values,
        {{&all, 1},
         {rows.ranges + row, kValueRows},
         tile.buffers.scores + row * kScoreStride,
         tile.buffers.partial + row * tile.v_padded,
         stride},
        tile.buffers.block_values);
  }
}

void WeightGroup(const QueryTile& tile, std::span<const Segment> segments,
                 const GroupInSplit& rows) {
  if (HoldsLatents(*tile.call->layer)) return WeightBlockGroup<true>(tile, rows);
  if (IsKvBlockType(tile.call->layer->v_type)) return WeightBlockGroup<false>(tile, rows);
  std::fill_n(tile.buffers.partial, std::int64_t{kGroupRows} * tile.v_padded, 0.0f);
  ForRanges(
      {rows.ranges, static_cast<std::size_t>(rows.count)},
      [&](RowRange range) HWY_ATTR { WeightRows<kGroupRows>(tile, segments, range, 0); },
      [&](std::size_t r, RowRange range)
          HWY_ATTR { WeightRows<1>(tile, segments, range, static_cast<int>(r)); });
}

void MergeGroup(const QueryTile& tile, const GroupInSplit& rows) {
  const TileBuffers& buffers = tile.buffers;
  for (int r = 0; r < rows.count; ++r) {
    const std::int64_t row = rows.first + r;
    SplitSums into{buffers.row_max[row], buffers.row_sum[row]};
    MergeSplit(rows.sums[r], buffers.partial + std::int64_t{r} * tile.v_padded, tile.v_padded, into,
               buffers.sums + row * tile.v_padded);
    buffers.row_max[row] = into.max;
    buffers.row_sum[row] = into.sum;
  }
}

RowBias BiasOf(const QueryTile& tile, int row, std::int32_t split) {
  const AttentionCall& call = *tile.call;
  const int group = call.group();
  const QueryToken& token = tile.task->tokens[static_cast<std::size_t>(row / group)];
  return call.BiasIn(token, tile.task->kv_head * group + row % group, split);
}

void AttendGroup(const QueryTile& tile, int first, std::int32_t split,
                 std::span<const Segment> segments) {
  GroupInSplit rows{.first = first, .count = std::min(kGroupRows, tile.rows - first)};
  FindRanges(tile, split, segments, rows);
  if (rows.any.empty()) return;
  ScoreGroup(tile, rows);
  for (int r = 0; r < rows.count; ++r) {
    if (rows.ranges[r].empty()) continue;
    rows.sums[r] = SoftmaxRow(tile.buffers.scores + r * kScoreStride, rows.ranges[r], segments,
                              tile.call->soft_cap, BiasOf(tile, first + r, split), [] {});
    if (rows.sums[r].max == kHidden) rows.ranges[r] = {};
  }
  WeightGroup(tile, segments, rows);
  MergeGroup(tile, rows);
}

// --- One tile of queries

template <int R>
void PackGroup(const QueryTile& tile, int first) {
  const AttentionCall& call = *tile.call;
  const int group = call.group();
  const std::int64_t k_dim = call.layer->shape.k_dim;
  const int count = std::min(R, tile.rows - first);
  const float* queries[R] = {};
  for (int r = 0; r < count; ++r) {
    const int row = first + r;
    const QueryToken& token = tile.task->tokens[static_cast<std::size_t>(row / group)];
    queries[r] = call.Query(token.index, tile.task->kv_head * group + row % group);
  }
  float* const q = tile.buffers.q + first * k_dim;
  if (IsKvBlockType(call.layer->k_type)) {
    PackBlockQueries<R>(queries, count, *call.layer, call.scale, tile.buffers.transformed, q);
  } else {
    PackQueries<R>(queries, count, static_cast<int>(k_dim), call.scale, q);
  }
}

void StartTile(const QueryTile& tile) {
  const AttentionCall& call = *tile.call;
  if (IsKvBlockType(call.layer->k_type) && !tile.has_key_tiles) {
    for (int first = 0; first < tile.rows; first += kBlockKeyRows) {
      PackGroup<kBlockKeyRows>(tile, first);
    }
  } else {
    for (int first = 0; first < tile.rows; first += kGroupRows) {
      PackGroup<kGroupRows>(tile, first);
    }
  }
  std::fill_n(tile.buffers.row_max, tile.rows, kHidden);
  std::fill_n(tile.buffers.row_sum, tile.rows, 0.0f);
  // Lanes past v_dim are multiplied but never used; they must not be slow to multiply.
  if (tile.v_padded != call.layer->shape.v_dim) {
    std::fill_n(tile.buffers.values, kSplitPositions * tile.v_padded, 0.0f);
  }
}

void FinishTile(const QueryTile& tile) {
  const AttentionCall& call = *tile.call;
  const int group = call.group();
  for (int row = 0; row < tile.rows; ++row) {
    float* const sums = tile.buffers.sums + static_cast<std::int64_t>(row) * tile.v_padded;
    const int head = tile.task->kv_head * group + row % group;
    FinishRow({tile.buffers.row_max[row], tile.buffers.row_sum[row]},
              call.sinks == nullptr ? nullptr : call.sinks + head, tile.v_padded, sums);
    if (HoldsLatents(*call.layer)) {
      const std::int64_t v_dim = call.layer->shape.v_dim;
      HadamardTransform(sums, v_dim, LatentHadamardSize(v_dim));
    }
    const QueryToken& token = tile.task->tokens[static_cast<std::size_t>(row / group)];
    std::copy_n(sums, call.layer->shape.v_dim, call.Out(token.index, head));
  }
}

TileBuffers CutWorkspace(float* workspace, const LayerKv& layer, int rows, int v_padded) {
  const KvShape& shape = layer.shape;
  const std::int64_t q_rows = RoundUp(rows, kGroupRows);
  TileBuffers buffers;
  buffers.keys = workspace;
  buffers.values = buffers.keys + std::int64_t{kSplitPositions} * shape.k_dim;
  buffers.scores = buffers.values + std::int64_t{kSplitPositions} * v_padded;
  buffers.partial = buffers.scores + kMaxGroupRows * kScoreStride;
  buffers.block_values = buffers.partial + kMaxGroupRows * v_padded;
  buffers.sums = buffers.block_values + BlockValuesFloats(layer);
  buffers.q = buffers.sums + std::int64_t{rows} * v_padded;
  buffers.transformed = buffers.q + q_rows * shape.k_dim;
  buffers.row_max = buffers.transformed + RoundUp(shape.k_dim, kCellTile);
  buffers.row_sum = buffers.row_max + rows;
  return buffers;
}

void AttendTile(const QueryTile& tile) {
  const PrefillTask& task = *tile.task;
  PositionRange seen{kEndOfSequence, 0};
  for (const QueryToken& token : task.tokens) {
    seen.begin = std::min(seen.begin, token.seen.begin);
    seen.end = std::max(seen.end, token.seen.end);
  }
  StartTile(tile);
  for (SplitWalker walker(task.runs, seen); walker.Next();) {
    WidenSplitKeys(tile.Wide(), walker.segments());
    WidenSplitValues(tile.Wide(), walker.segments());
    for (int first = 0; first < tile.rows; first += kGroupRows) {
      AttendGroup(tile, first, walker.split(), walker.segments());
    }
  }
  FinishTile(tile);
}

void AttendPrefill(const PrefillTask& task) {
  const LayerKv& layer = *task.call->layer;
  const int rows = static_cast<int>(task.tokens.size()) * task.call->group();
  const int v_padded = RoundUp(layer.shape.v_dim, kValuePadding);
  QueryTile tile{task.call, &task, CutWorkspace(task.workspace, layer, rows, v_padded), rows,
                 v_padded};
#if HWY_TARGET == HWY_AVX3_DL
  tile.has_key_tiles = TilesInUse() && rows >= kMinKeyTileRows && IsKvBlockType(layer.k_type) &&
                       !HoldsLatents(layer);
  if (tile.has_key_tiles) return WithKeyTiles([&]() HWY_ATTR { AttendTile(tile); });
#endif
  AttendTile(tile);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu {
HWY_EXPORT(AttendPrefill);

std::int64_t PrefillWorkspaceFloats(const LayerKv& layer, std::int64_t rows) {
  const KvShape& shape = layer.shape;
  const std::int64_t v_padded = RoundUp(shape.v_dim, kValuePadding);
  const std::int64_t split = kSplitPositions * (shape.k_dim + v_padded);
  const std::int64_t group = kMaxGroupRows * (kScoreStride + v_padded);
  const std::int64_t all = rows * (v_padded + 2) + (rows + kMaxGroupRows) * shape.k_dim +
                           RoundUp(shape.k_dim, kCellTile);
  return RoundUp<std::int64_t>(split + group + BlockValuesFloats(layer) + all, kCellTile);
}

void AttendPrefill(const PrefillTask& task) {
  HWY_DYNAMIC_DISPATCH(AttendPrefill)(task);
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
