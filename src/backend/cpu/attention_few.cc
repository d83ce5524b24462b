// Attention of few rows: decoding. One task is some neighbouring splits of one KV head: its keys
// and values are read from memory once and serve all rows, up to eight at a time.
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_few.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/attention_micro-inl.h"
#include "backend/cpu/attention_widen-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// Rows that share a pass over a split: with more, the products outgrow the registers.
inline constexpr int kRowsAtOnce = kManyRegisters ? 8 : 4;
// Keys whose values, at these head sizes, stay in the first-level cache.
inline constexpr int kKeysAtOnce = 32;

// One group of rows in a split.
struct Rows {
  int count = 0;
  const float* queries[kRowsAtOnce] = {};
  RowRange ranges[kRowsAtOnce] = {};
  RowBias biases[kRowsAtOnce] = {};
  float* partials[kRowsAtOnce] = {};
};

struct Buffers {
  float* q;          // [k_dim][kRowsAtOnce]
  float* scores;     // [kRowsAtOnce][kScoreStride]
  float* sums;       // [kRowsAtOnce][PartialStride]
  WideSplit values;  // where V is in K: the split's values as rows
};

// Scores of the cells that hold positions [begin, end) of one segment. The first tile may
// begin before them: what it has there must not reach the scores.
template <DType kType, int R>
void ScoreCells(const Storage<kType>* head, const LayerKv& layer, const Segment& segment,
                const Buffers& buffers) {
  constexpr int kTiles = !kManyRegisters ? (R <= 2 ? 2 : 1) : R == 1 ? 8 : R <= 3 ? 4 : 2;
  const int k_dim = layer.shape.k_dim;
  const int lane = segment.cell % kCellTile;
  const Storage<kType>* tile = head + KeyTile(layer, segment.cell);
  int position = segment.begin;
  if (lane != 0) {
    HWY_ALIGN float first[R * kCellTile];
    ScoreTiles<kType, R, 1>(tile, k_dim, buffers.q, first, kCellTile);
    const int count = std::min(kCellTile - lane, segment.end - position);
    for (int r = 0; r < R; ++r) {
      std::copy_n(first + r * kCellTile + lane, count,
                  buffers.scores + r * kScoreStride + position);
    }
    position += count;
    tile += k_dim * kCellTile;
  }
  int tiles = (segment.end - position + kCellTile - 1) / kCellTile;
  for (; tiles > 0;) {
    float* const scores = buffers.scores + position;
    const int done = tiles >= kTiles ? kTiles : 1;
    if (tiles >= kTiles) {
      ScoreTiles<kType, R, kTiles>(tile, k_dim, buffers.q, scores, kScoreStride);
    } else {
      ScoreTiles<kType, R, 1>(tile, k_dim, buffers.q, scores, kScoreStride);
    }
    tiles -= done;
    position += done * kCellTile;
    tile += done * k_dim * kCellTile;
  }
}

template <DType kType, int R>
void ScoreSegments(const SplitTask& task, std::span<const Segment> segments,
                   const Buffers& buffers) {
  const LayerKv& layer = *task.call->layer;
  const auto* const head =
      reinterpret_cast<const Storage<kType>*>(layer.k) + HeadKeys(layer, task.kv_head);
  for (const Segment& segment : segments) ScoreCells<kType, R>(head, layer, segment, buffers);
}

// Where a head's values lie: those of cell c at values + c × stride.
template <DType kType>
struct HeadCells {
  const Storage<kType>* values;
  std::size_t stride;
  int v_dim;
  std::span<const Segment> segments;
};

// WeightValues over all vectors of `keys` neighbouring cells. A last vector that would stick
// out overlaps the one before: its sums lie in lanes of their own.
template <DType kType, int R, int NV>
void WeightCells(const HeadCells<kType>& in, std::int64_t cell, const float* weights, int keys,
                 float* sums, std::size_t sum_stride) {
  const Storage<kType>* const v = in.values + static_cast<std::size_t>(cell) * in.stride;
  const int vectors = (in.v_dim + kLanes - 1) / kLanes;
  if (in.v_dim < kLanes) {
    for (int i = 0; i < in.v_dim; ++i) {
      WeightValues<hn::CappedTag<float, 1>, kType, R, 1, Stream::kMemory>(
          v + i, in.stride, 0, weights, keys, sums + i, sum_stride);
    }
    return;
  }
  int i = 0;
  for (; i + NV <= vectors; i += NV) {
    const int first = std::min(i * kLanes, in.v_dim - kLanes);
    const int last = std::min((i + NV - 1) * kLanes, in.v_dim - kLanes);
    WeightValues<DF, kType, R, NV, Stream::kMemory>(v + first, in.stride,
                                                    static_cast<std::size_t>(last - first), weights,
                                                    keys, sums + i * kLanes, sum_stride);
  }
  for (; i < vectors; ++i) {
    const int first = std::min(i * kLanes, in.v_dim - kLanes);
    WeightValues<DF, kType, R, 1, Stream::kMemory>(v + first, in.stride, 0, weights, keys,
                                                   sums + i * kLanes, sum_stride);
  }
}

// The same over the positions of `range` that are in segments, ascending.
template <DType kType, int R, int NV>
void WeightRange(const HeadCells<kType>& in, RowRange range, const float* weights, float* sums,
                 std::size_t sum_stride) {
  for (const Segment& segment : in.segments) {
    const int end = std::min(range.end, segment.end);
    for (int j = std::max(range.begin, segment.begin); j < end; j += kKeysAtOnce) {
      const std::int64_t cell = std::int64_t{segment.cell} + (j - segment.begin);
      WeightCells<kType, R, NV>(in, cell, weights + j, std::min(kKeysAtOnce, end - j), sums,
                                sum_stride);
    }
  }
}

template <DType kType, int R>
void WeightSegments(const SplitTask& task, std::span<const Segment> segments, const Rows& rows,
                    const Buffers& buffers) {
  constexpr int kVectors = R == 8 ? 2 : kManyRegisters || R <= 2 ? 4 : 2;
  const LayerKv& layer = *task.call->layer;
  const int v_dim = layer.shape.v_dim;
  const std::size_t stride = static_cast<std::size_t>(PartialStride(v_dim));
  const auto* const head =
      reinterpret_cast<const Storage<kType>*>(layer.v) + HeadValues(layer, task.kv_head);
  const HeadCells<kType> cells{head, static_cast<std::size_t>(v_dim), v_dim, segments};
  std::fill_n(buffers.sums, R * stride, 0.0f);
  ForRanges(
      {rows.ranges, R},
      [&](RowRange range) HWY_ATTR {
        WeightRange<kType, R, kVectors>(cells, range, buffers.scores, buffers.sums, stride);
      },
      [&](std::size_t r, RowRange range) HWY_ATTR {
        WeightRange<kType, 1, 4>(cells, range, buffers.scores + r * kScoreStride,
                                 buffers.sums + r * stride, stride);
      });
}

template <int R>
void Score(const SplitTask& task, std::span<const Segment> segments, const Buffers& buffers) {
  switch (task.call->layer->k_type) {
    case DType::kF16: return ScoreSegments<DType::kF16, R>(task, segments, buffers);
    case DType::kBF16: return ScoreSegments<DType::kBF16, R>(task, segments, buffers);
    default: return ScoreSegments<DType::kF32, R>(task, segments, buffers);
  }
}

// V in K: in a tile of keys lanes are cells, and sums need lanes of values.
template <int R>
void WeightInKeys(const SplitTask& task, std::span<const Segment> segments, const Rows& rows,
                  const Buffers& buffers) {
  const auto stride = static_cast<std::size_t>(PartialStride(task.call->layer->shape.v_dim));
  std::fill_n(buffers.sums, R * stride, 0.0f);
  ForRanges(
      {rows.ranges, R},
      [&](RowRange range) HWY_ATTR {
        WeightWide<R>(buffers.values, segments, range, buffers.scores, buffers.sums, stride);
      },
      [&](std::size_t r, RowRange range) HWY_ATTR {
        WeightWide<1>(buffers.values, segments, range, buffers.scores + r * kScoreStride,
                      buffers.sums + r * stride, stride);
      });
}

template <int R>
void Weight(const SplitTask& task, std::span<const Segment> segments, const Rows& rows,
            const Buffers& buffers) {
  if (task.call->layer->shape.v_in_k) return WeightInKeys<R>(task, segments, rows, buffers);
  switch (task.call->layer->v_type) {
    case DType::kF16: return WeightSegments<DType::kF16, R>(task, segments, rows, buffers);
    case DType::kBF16: return WeightSegments<DType::kBF16, R>(task, segments, rows, buffers);
    default: return WeightSegments<DType::kF32, R>(task, segments, rows, buffers);
  }
}

template <int R>
void AttendRows(const SplitTask& task, std::span<const Segment> segments, Rows& rows,
                const Buffers& buffers) {
  const AttentionCall& call = *task.call;
  const std::int64_t stride = PartialStride(call.layer->shape.v_dim);
  PackQueries<R>(rows.queries, R, call.layer->shape.k_dim, call.scale, buffers.q);
  Score<R>(task, segments, buffers);
  SplitSums sums[R];
  for (int r = 0; r < R; ++r) {
    if (rows.ranges[r].empty()) continue;
    sums[r] = SoftmaxRow(buffers.scores + r * kScoreStride, rows.ranges[r], segments, call.soft_cap,
                         rows.biases[r]);
    if (sums[r].max == kHidden) rows.ranges[r] = {};
  }
  Weight<R>(task, segments, rows, buffers);
  for (int r = 0; r < R; ++r) {
    std::copy_n(buffers.sums + r * stride, stride - kCellTile, rows.partials[r]);
    rows.partials[r][stride - kCellTile] = sums[r].max;
    rows.partials[r][stride - kCellTile + 1] = sums[r].sum;
  }
}

void AttendGroup(const SplitTask& task, std::span<const Segment> segments, Rows& rows,
                 const Buffers& buffers) {
  switch (rows.count) {
    case 1: return AttendRows<1>(task, segments, rows, buffers);
    case 2: return AttendRows<2>(task, segments, rows, buffers);
    case 3: return AttendRows<3>(task, segments, rows, buffers);
    case 4: return AttendRows<4>(task, segments, rows, buffers);
    default: return AttendRows<kRowsAtOnce>(task, segments, rows, buffers);
  }
}

// The next group of rows: eight, four or what is left.
Rows RowsFrom(const SplitTask& task, int first, std::int32_t split,
              std::span<const Segment> segments, float* partials) {
  const AttentionCall& call = *task.call;
  const int group = call.group();
  const int left = static_cast<int>(task.tokens.size()) * group - first;
  const std::int64_t stride = PartialStride(call.layer->shape.v_dim);
  Rows rows;
  rows.count = left >= kRowsAtOnce ? kRowsAtOnce : std::min(left, 4);
  for (int r = 0; r < rows.count; ++r) {
    const int row = first + r;
    const QueryToken& token = task.tokens[static_cast<std::size_t>(row / group)];
    const int head = task.kv_head * group + row % group;
    rows.queries[r] = call.Query(token.index, head);
    rows.ranges[r] = RangeInSplit(token.seen, split, segments);
    rows.biases[r] = call.BiasIn(token, head, split);
    rows.partials[r] = partials + row * stride;
  }
  return rows;
}

void AttendSplits(const SplitTask& task) {
  const KvShape& shape = task.call->layer->shape;
  const std::int64_t stride = PartialStride(shape.v_dim);
  const int row_count = static_cast<int>(task.tokens.size()) * task.call->group();
  float* const scores = task.scratch;
  float* const sums = scores + kRowsAtOnce * kScoreStride;
  float* const values = sums + kRowsAtOnce * stride;
  const int v_padded = shape.v_in_k ? RoundUp(shape.v_dim, kValuePadding) : 0;
  const Buffers buffers{values + kSplitPositions * v_padded,
                        scores,
                        sums,
                        {task.call->layer, task.kv_head, nullptr, values, v_padded}};
  // Lanes past v_dim are multiplied but never used; they must not be slow to multiply.
  if (v_padded > shape.v_dim) std::fill_n(values, kSplitPositions * v_padded, 0.0f);
  SplitWalker walker(task.runs, task.seen);
  float* partials = task.partials;
  for (int i = 0; i < task.splits && walker.Next(); ++i, partials += row_count * stride) {
    if (shape.v_in_k) WidenAllValues(buffers.values, walker.segments());
    for (int first = 0; first < row_count;) {
      Rows rows = RowsFrom(task, first, walker.split(), walker.segments(), partials);
      AttendGroup(task, walker.segments(), rows, buffers);
      first += rows.count;
    }
  }
}

// From a kernel's lane order: the last vector may overlap the one before, but for V in K.
void CopyRow(const float* sums, const KvShape& shape, float* out) {
  const DF d;
  const int v_dim = shape.v_dim;
  if (v_dim < kLanes || shape.v_in_k) {
    std::copy_n(sums, v_dim, out);
    return;
  }
  for (int i = 0; i * kLanes < v_dim; ++i) {
    hn::StoreU(hn::LoadU(d, sums + i * kLanes), d, out + std::min(i * kLanes, v_dim - kLanes));
  }
}

void MergeSplits(const MergeTask& task) {
  const AttentionCall& call = *task.call;
  const int v_dim = call.layer->shape.v_dim;
  const int group = call.group();
  const int count = RoundUp(v_dim, kLanes);
  const std::int64_t stride = PartialStride(v_dim);
  const std::int64_t rows = static_cast<std::int64_t>(task.tokens.size()) * group;
  for (std::int64_t row = 0; row < rows; ++row) {
    float* const into = task.partials + row * stride;
    const auto sums_of = [&](const float* partial) {
      return SplitSums{partial[stride - kCellTile], partial[stride - kCellTile + 1]};
    };
    SplitSums sums = sums_of(into);
    for (int split = 1; split < task.splits; ++split) {
      const float* const partial = into + split * rows * stride;
      MergeSplit(sums_of(partial), partial, count, sums, into);
    }
    const int head = task.kv_head * group + static_cast<int>(row % group);
    FinishRow(sums, call.sinks == nullptr ? nullptr : call.sinks + head, count, into);
    const QueryToken& token = task.tokens[static_cast<std::size_t>(row / group)];
    CopyRow(into, call.layer->shape, call.Out(token.index, head));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu {
HWY_EXPORT(AttendSplits);
HWY_EXPORT(MergeSplits);

std::int64_t SplitScratchFloats(const KvShape& shape) {
  constexpr std::int64_t kRows = 8;  // kRowsAtOnce of any target
  const std::int64_t values =
      shape.v_in_k ? std::int64_t{kSplitPositions} * RoundUp(shape.v_dim, kValuePadding) : 0;
  return kRows * (kScoreStride + PartialStride(shape.v_dim) + RoundUp(shape.k_dim, kCellTile)) +
         values;
}

void AttendSplits(const SplitTask& task) {
  HWY_DYNAMIC_DISPATCH(AttendSplits)(task);
}
void MergeSplits(const MergeTask& task) {
  HWY_DYNAMIC_DISPATCH(MergeSplits)(task);
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
