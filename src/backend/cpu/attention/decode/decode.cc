// Decode attention: few rows, bound by the memory's bandwidth. A task is some neighbouring splits
// of one KV head. For each split and each group of up to eight rows:
//
//   1. scores of the rows against the split's keys, which are read in their storage type
//   2. softmax within the split
//   3. weighted sums of the split's values
//   4. the result is merged into the partial result of the splits before it, or written as a
//      partial result of its own
//
// Keys and values come from memory once; further groups of rows find them in the caches. While a
// split is computed, the next one is prefetched (prefetch-inl.h).
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/decode/decode.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/attention_widen-inl.h"
#include "backend/cpu/attention/block/keys-inl.h"
#include "backend/cpu/attention/block/widen-inl.h"
#include "backend/cpu/attention/decode/types-inl.h"
#include "backend/cpu/simd/highway-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// One group of rows that are computed together, in one split.
struct Rows {
  int count = 0;
  float* q = nullptr;  // packed
  RowRange ranges[kRowsAtOnce] = {};
  RowBias biases[kRowsAtOnce] = {};
  bool merge = false;  // into the existing partial results, instead of replacing them
  float* partials[kRowsAtOnce] = {};
};

struct Buffers {
  float* q;             // all rows' packed queries, group by group, k_dim floats a row
  float* transformed;   // [k_dim]
  float* scores;        // [kRowsAtOnce][kScoreStride]
  float* sums;          // [kRowsAtOnce][PartialStride]
  float* block_values;  // BlockValuesFloats
  WideSplit values;     // where V is in K: the split's values as rows, or as tiles of latents
};

// WeightSegments for V in K. In a tile of keys lanes are cells, but weighted sums need lanes of
// values, so they use the transposed values of WidenAllValues.
template <int R>
void WeightInKeys(const WideSplit& values, const WeightedRows& rows) {
  WeighInParts<R>(
      rows,
      [&](RowRange range, const float* weights, float* sums)
          HWY_ATTR { WeightWide<R>(values, rows.segments, range, weights, sums, rows.sum_stride); },
      [&](RowRange range, const float* weights, float* sums) HWY_ATTR {
        WeightWide<1>(values, rows.segments, range, weights, sums, rows.sum_stride);
      });
}

// A row of a partial result ends with its max and its sum.
SplitSums SumsOf(const float* partial, std::int64_t stride) {
  return {partial[stride - kCellTile], partial[stride - kCellTile + 1]};
}
void SetSums(const SplitSums& sums, std::int64_t stride, float* partial) {
  partial[stride - kCellTile] = sums.max;
  partial[stride - kCellTile + 1] = sums.sum;
}

// Merges one split into the partial result of the splits before it.
void MergePartial(const SplitSums& split, const float* values, std::int64_t stride, float* into) {
  SplitSums sums = SumsOf(into, stride);
  MergeSplit(split, values, static_cast<int>(stride) - kCellTile, sums, into);
  SetSums(sums, stride, into);
}

std::uintptr_t KeysAt(const LayerKv& layer, const CellOfHead& place) {
  const std::int64_t bytes =
      BlockHeadKeys(layer, place.kv_head) + BlockTile(layer.k_type, layer.shape.k_dim, place.cell);
  return reinterpret_cast<std::uintptr_t>(layer.k) + static_cast<std::uintptr_t>(bytes);
}
std::uintptr_t ValuesAt(const LayerKv& layer, const CellOfHead& place) {
  const std::int64_t bytes = BlockHeadValues(layer, place.kv_head) +
                             BlockTile(layer.v_type, layer.shape.v_dim, place.cell);
  return reinterpret_cast<std::uintptr_t>(layer.v) + static_cast<std::uintptr_t>(bytes);
}

// The keys and values of block types that a split beginning at `place` reads.
SplitPrefetch SplitAt(const LayerKv& layer, const CellOfHead& place) {
  const KvShape& shape = layer.shape;
  const SplitPrefetch::Range keys{KeysAt(layer, place),
                                  BytesOf(layer.k_type, kSplitPositions * shape.k_dim)};
  if (!IsKvBlockType(layer.v_type) || shape.v_in_k) return {keys, {}};
  const SplitPrefetch::Range values{ValuesAt(layer, place),
                                    BytesOf(layer.v_type, kSplitPositions * shape.v_dim)};
  return IsKvBlockType(layer.k_type) ? SplitPrefetch(keys, values) : SplitPrefetch(values, {});
}

// Returns where the split after split number `split` of the task begins: most likely in the cell
// behind this one's last, since histories are mostly contiguous.
std::optional<CellOfHead> PlaceAfter(const DecodeTask& task, int split,
                                     std::span<const Segment> segments) {
  if (split + 1 == task.splits) return task.next;
  const Segment& last = segments.back();
  return CellOfHead{task.kv_head, std::int64_t{last.cell} + last.end - last.begin};
}

// Links the end of the task's tiles to the place that its thread probably reads next. Without such
// a place, the loops prefetch the memory behind the task.
Prefetcher StreamsOf(const DecodeTask& task) {
  const LayerKv& layer = *task.call->layer;
  const CellOfHead end{task.end.kv_head, RoundUp<std::int64_t>(task.end.cell, kCellTile)};
  const CellOfHead next = task.next.value_or(end);
  return {
      {}, {KeysAt(layer, end), KeysAt(layer, next)}, {ValuesAt(layer, end), ValuesAt(layer, next)}};
}

using ScoreFunction = void (*)(const LayerKv&, int, const ScoredRows&, int);

ScoreFunction ScoreFunctionOf(const LayerKv& layer) {
  if (HoldsLatents(layer)) return &LatentKernels::Score;
  switch (layer.k_type) {
    case DType::kF16: return &DecodeKernels<DType::kF16>::Score;
    case DType::kBF16: return &DecodeKernels<DType::kBF16>::Score;
    case DType::kQ8_0: return &DecodeKernels<DType::kQ8_0>::Score;
    case DType::kQ4_0: return &DecodeKernels<DType::kQ4_0>::Score;
    default: return &DecodeKernels<DType::kF32>::Score;
  }
}

using WeightFunction = void (*)(const LayerKv&, int, const WeightedRows&, int, float*, Prefetcher*);

WeightFunction WeightFunctionOf(DType v_type) {
  switch (v_type) {
    case DType::kF16: return &DecodeKernels<DType::kF16>::Weight;
    case DType::kBF16: return &DecodeKernels<DType::kBF16>::Weight;
    case DType::kQ8_0: return &DecodeKernels<DType::kQ8_0>::Weight;
    case DType::kQ4_0: return &DecodeKernels<DType::kQ4_0>::Weight;
    default: return &DecodeKernels<DType::kF32>::Weight;
  }
}

template <int R>
void AttendRows(const DecodeTask& task, std::span<const Segment> segments, Prefetcher prefetcher,
                Rows& rows, const Buffers& buffers) {
  const AttentionCall& call = *task.call;
  const LayerKv& layer = *call.layer;
  const std::int64_t stride = PartialStride(layer.shape.v_dim);
  ScoreFunctionOf(layer)(layer, task.kv_head, {segments, rows.q, buffers.scores, &prefetcher}, R);
  SplitSums sums[R];
  for (int r = 0; r < R; ++r) {
    if (rows.ranges[r].empty()) continue;
    sums[r] = SoftmaxRow(buffers.scores + r * kScoreStride, rows.ranges[r], segments, call.soft_cap,
                         rows.biases[r], PrefetchInSoftmax{layer.v_type, prefetcher.split});
    if (sums[r].max == kHidden) rows.ranges[r] = {};
  }
  const WeightedRows weighted{
      segments, {rows.ranges, R}, buffers.scores, buffers.sums, static_cast<std::size_t>(stride)};
  if (HoldsLatents(layer)) {
    LatentKernels::Weight(layer, buffers.values.values, weighted, R, buffers.block_values);
  } else if (layer.shape.v_in_k) {
    WeightInKeys<R>(buffers.values, weighted);
  } else {
    WeightFunctionOf(layer.v_type)(layer, task.kv_head, weighted, R, buffers.block_values,
                                   &prefetcher);
  }
  for (int r = 0; r < R; ++r) {
    const float* const values = buffers.sums + r * stride;
    if (rows.merge) {
      MergePartial(sums[r], values, stride, rows.partials[r]);
    } else {
      std::copy_n(values, stride - kCellTile, rows.partials[r]);
      SetSums(sums[r], stride, rows.partials[r]);
    }
  }
}

void AttendGroup(const DecodeTask& task, std::span<const Segment> segments,
                 const Prefetcher& prefetcher, Rows& rows, const Buffers& buffers) {
  switch (rows.count) {
    case 1: return AttendRows<1>(task, segments, prefetcher, rows, buffers);
    case 2: return AttendRows<2>(task, segments, prefetcher, rows, buffers);
    case 3: return AttendRows<3>(task, segments, prefetcher, rows, buffers);
    case 4: return AttendRows<4>(task, segments, prefetcher, rows, buffers);
    default: return AttendRows<kRowsAtOnce>(task, segments, prefetcher, rows, buffers);
  }
}

// Rows of the next group if `left` rows are left: kRowsAtOnce, four, or all of fewer than four.
constexpr int GroupOf(int left) {
  return left >= kRowsAtOnce ? kRowsAtOnce : std::min(left, 4);
}

int RowCount(const DecodeTask& task) {
  return static_cast<int>(task.tokens.size()) * task.call->group();
}

const QueryToken& TokenOf(const DecodeTask& task, int row) {
  return task.tokens[static_cast<std::size_t>(row / task.call->group())];
}

int HeadOf(const DecodeTask& task, int row) {
  return task.kv_head * task.call->group() + row % task.call->group();
}

// Packs R queries in the form that scores of layer.k_type read, k_dim floats a row; rows from
// `rows` on repeat the first. `transformed` is workspace for k_dim floats.
template <int R>
void PackQueriesFor(const LayerKv& layer, const float* const* queries, int rows, float scale,
                    float* transformed, float* q) {
  const int k_dim = layer.shape.k_dim;
  if (IsKvBlockType(layer.k_type)) {
    return PackBlockQueries<R>(queries, rows, layer, scale, transformed, q);
  }
  PackQueries<R>(queries, rows, k_dim, scale, q);
}

template <int R>
void PackGroup(const DecodeTask& task, int first, const Buffers& buffers) {
  const LayerKv& layer = *task.call->layer;
  const float* queries[R];
  for (int r = 0; r < R; ++r) {
    queries[r] = task.call->Query(TokenOf(task, first + r).index, HeadOf(task, first + r));
  }
  PackQueriesFor<R>(layer, queries, R, task.call->scale, buffers.transformed,
                    buffers.q + std::int64_t{first} * layer.shape.k_dim);
}

// Packs the queries of all rows, once for all splits of the task.
void PackRows(const DecodeTask& task, const Buffers& buffers) {
  const int row_count = RowCount(task);
  for (int first = 0; first < row_count;) {
    const int count = GroupOf(row_count - first);
    switch (count) {
      case 1: PackGroup<1>(task, first, buffers); break;
      case 2: PackGroup<2>(task, first, buffers); break;
      case 3: PackGroup<3>(task, first, buffers); break;
      case 4: PackGroup<4>(task, first, buffers); break;
      default: PackGroup<kRowsAtOnce>(task, first, buffers); break;
    }
    first += count;
  }
}

Rows RowsFrom(const DecodeTask& task, int first, std::int32_t split,
              std::span<const Segment> segments, const Buffers& buffers, float* partials) {
  const AttentionCall& call = *task.call;
  const KvShape& shape = call.layer->shape;
  Rows rows;
  rows.count = GroupOf(RowCount(task) - first);
  rows.q = buffers.q + std::int64_t{first} * shape.k_dim;
  for (int r = 0; r < rows.count; ++r) {
    const int row = first + r;
    const QueryToken& token = TokenOf(task, row);
    rows.ranges[r] = RangeInSplit(token.seen, split, segments);
    rows.biases[r] = call.BiasIn(token, HeadOf(task, row), split);
    rows.partials[r] = partials + row * PartialStride(shape.v_dim);
  }
  return rows;
}

Buffers CutWorkspace(const DecodeTask& task) {
  const LayerKv& layer = *task.call->layer;
  const KvShape& shape = layer.shape;
  const int v_padded = shape.v_in_k ? RoundUp(shape.v_dim, kValuePadding) : 0;
  Buffers buffers;
  buffers.scores = task.workspace;
  buffers.sums = buffers.scores + kRowsAtOnce * kScoreStride;
  float* const values = buffers.sums + kRowsAtOnce * PartialStride(shape.v_dim);
  buffers.values = {&layer, task.kv_head, nullptr, values, v_padded};
  buffers.block_values = values + kSplitPositions * v_padded;
  buffers.transformed = buffers.block_values + BlockValuesFloats(layer);
  buffers.q = buffers.transformed + RoundUp(shape.k_dim, kCellTile);
  // Lanes past v_dim are multiplied but never used; they must not be slow to multiply.
  if (v_padded > shape.v_dim) std::fill_n(values, kSplitPositions * v_padded, 0.0f);
  return buffers;
}

void AttendDecode(const DecodeTask& task) {
  const LayerKv& layer = *task.call->layer;
  const int row_count = RowCount(task);
  const Buffers buffers = CutWorkspace(task);
  PackRows(task, buffers);
  SplitWalker walker(task.runs, task.seen);
  Prefetcher prefetcher = StreamsOf(task);
  float* partials = task.partials;
  for (int i = 0; i < task.splits && walker.Next(); ++i) {
    const std::optional<CellOfHead> after = PlaceAfter(task, i, walker.segments());
    if (after) prefetcher.split = SplitAt(layer, *after);
    if (layer.shape.v_in_k) WidenSplitValues(buffers.values, walker.segments());
    for (int first = 0; first < row_count;) {
      Rows rows = RowsFrom(task, first, walker.split(), walker.segments(), buffers, partials);
      rows.merge = task.merge && i > 0;
      AttendGroup(task, walker.segments(), prefetcher, rows, buffers);
      prefetcher.split = {};  // the first group has prefetched it
      first += rows.count;
    }
    if (!task.merge) partials += row_count * PartialStride(layer.shape.v_dim);
  }
}

// Copies a row from the kernel's lane order to the output. The last vector may overlap the one
// before it, except for V in K.
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

void MergeSplits(const MergeTask& task, const PartialResults& results, float* into) {
  const std::int64_t stride = PartialStride(task.call->layer->shape.v_dim);
  const std::int64_t rows = static_cast<std::int64_t>(task.tokens.size()) * task.call->group();
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* partial = results.first + row * stride;
    for (int i = 0; i < results.count; ++i, partial += results.distance) {
      MergePartial(SumsOf(partial, stride), partial, stride, into + row * stride);
    }
  }
}

void FinishRows(const MergeTask& task, float* merged) {
  const AttentionCall& call = *task.call;
  const int v_dim = call.layer->shape.v_dim;
  const int group = call.group();
  const int count = RoundUp(v_dim, kLanes);
  const std::int64_t stride = PartialStride(v_dim);
  for (const QueryToken& token : task.tokens) {
    for (int head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
      const float* const sink = call.sinks == nullptr ? nullptr : call.sinks + head;
      FinishRow(SumsOf(merged, stride), sink, count, merged);
      if (HoldsLatents(*call.layer)) HadamardTransform(merged, v_dim, LatentHadamardSize(v_dim));
      CopyRow(merged, call.layer->shape, call.Out(token.index, head));
      merged += stride;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu {
HWY_EXPORT(AttendDecode);
HWY_EXPORT(MergeSplits);
HWY_EXPORT(FinishRows);

std::int64_t DecodeWorkspaceFloats(const LayerKv& layer, std::int64_t rows) {
  const KvShape& shape = layer.shape;
  constexpr std::int64_t kRows = 8;  // kRowsAtOnce of any target
  const std::int64_t values =
      shape.v_in_k ? std::int64_t{kSplitPositions} * RoundUp(shape.v_dim, kValuePadding) : 0;
  return kRows * (kScoreStride + PartialStride(shape.v_dim)) + values + BlockValuesFloats(layer) +
         RoundUp(shape.k_dim, kCellTile) + rows * shape.k_dim;
}

void AttendDecode(const DecodeTask& task) {
  HWY_DYNAMIC_DISPATCH(AttendDecode)(task);
}
void MergeSplits(const MergeTask& task, const PartialResults& results, float* into) {
  HWY_DYNAMIC_DISPATCH(MergeSplits)(task, results, into);
}
void FinishRows(const MergeTask& task, float* merged) {
  HWY_DYNAMIC_DISPATCH(FinishRows)(task, merged);
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
