// Decode attention: few rows, bound by the memory's bandwidth. A task is some neighbouring splits
// of one KV head. For each split and up to 32 rows:
//
//   1. scores of the rows against the split's keys
//   2. softmax within the split
//   3. weighted sums of the split's values
//   4. the result is merged into the partial result of the splits before it, or written as a
//      partial result of its own
//
// Up to eight rows share a pass over the keys and the values, which are read in their storage type. Keys and values
// come from memory once; further groups of rows find them in the caches, for f16 and bf16 in the first-level one
// (decode/many_rows.cc). While a split is computed, the next one is prefetched (prefetch-inl.h).
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

// Rows that are computed together, in one split.
struct Rows {
  int first = 0;  // of the task's rows
  int count = 0;
  RowRange ranges[kRowsTogether] = {};
  RowBias biases[kRowsTogether] = {};
  bool merge = false;         // into the existing partial results, instead of replacing them
  float* partials = nullptr;  // [count][PartialStride]
};

struct Buffers {
  float* q;             // all rows' packed queries, k_dim floats a row
  float* transformed;   // [k_dim]
  float* scores;        // [Room][kScoreStride]
  float* sums;          // [Room][PartialStride]
  float* block_values;  // BlockValuesFloats
  float* part;          // ManyRowKernels::WorkspaceFloats, with more than kRowsAtOnce rows
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

void WeightInKeysOf(const WideSplit& values, const WeightedRows& rows, int count) {
  switch (count) {
    case 1: return WeightInKeys<1>(values, rows);
    case 2: return WeightInKeys<2>(values, rows);
    case 3: return WeightInKeys<3>(values, rows);
    case 4: return WeightInKeys<4>(values, rows);
    default: return WeightInKeys<kRowsAtOnce>(values, rows);
  }
}

// Rows of the next group if `left` rows are left: kRowsAtOnce, four, or all of fewer than four.
constexpr int GroupOf(int left) {
  return left >= kRowsAtOnce ? kRowsAtOnce : std::min(left, 4);
}

// Whether ManyRowKernels serve `rows` rows and keys or values of a type.
bool InParts(DType type, int rows) {
  return (type == DType::kF16 || type == DType::kBF16) && rows > kRowsAtOnce;
}
bool ValuesInParts(const LayerKv& layer, int rows) {
  return !layer.shape.v_in_k && InParts(layer.v_type, rows);
}

void ScoreRows(const DecodeTask& task, std::span<const Segment> segments, Prefetcher& prefetcher,
               const Rows& rows, const Buffers& buffers) {
  const LayerKv& layer = *task.call->layer;
  float* const q = buffers.q + std::int64_t{rows.first} * layer.shape.k_dim;
  if (InParts(layer.k_type, rows.count)) {
    return ManyRowKernels::Score(layer, task.kv_head, {segments, q, buffers.scores, &prefetcher},
                                 rows.count, buffers.part);
  }
  Prefetcher nothing = prefetcher;
  nothing.split = {};
  for (int first = 0; first < rows.count;) {
    const int group = GroupOf(rows.count - first);
    // The first group's steps prefetch.
    ScoreFunctionOf(layer)(
        layer, task.kv_head,
        {segments, q + std::int64_t{first} * layer.shape.k_dim,
         buffers.scores + first * kScoreStride, first == 0 ? &prefetcher : &nothing},
        group);
    first += group;
  }
}

void WeightRows(const DecodeTask& task, std::span<const Segment> segments, Prefetcher& prefetcher,
                const Rows& rows, const Buffers& buffers) {
  const LayerKv& layer = *task.call->layer;
  const auto stride = static_cast<std::size_t>(PartialStride(layer.shape.v_dim));
  const auto rows_from = [&](int first, int count) {
    return WeightedRows{segments,
                        {rows.ranges + first, static_cast<std::size_t>(count)},
                        buffers.scores + first * kScoreStride,
                        buffers.sums + static_cast<std::size_t>(first) * stride,
                        stride};
  };
  if (ValuesInParts(layer, rows.count)) {
    return ManyRowKernels::Weight(layer, task.kv_head, rows_from(0, rows.count), buffers.part,
                                  prefetcher.values);
  }
  for (int first = 0; first < rows.count;) {
    const int group = GroupOf(rows.count - first);
    const WeightedRows weighted = rows_from(first, group);
    if (HoldsLatents(layer)) {
      LatentKernels::Weight(layer, buffers.values.values, weighted, group, buffers.block_values);
    } else if (layer.shape.v_in_k) {
      WeightInKeysOf(buffers.values, weighted, group);
    } else {
      WeightFunctionOf(layer.v_type)(layer, task.kv_head, weighted, group, buffers.block_values,
                                     &prefetcher);
    }
    prefetcher.split = {};  // the first group has prefetched it
    first += group;
  }
}

void AttendRows(const DecodeTask& task, std::span<const Segment> segments, Prefetcher prefetcher,
                Rows& rows, const Buffers& buffers) {
  const AttentionCall& call = *task.call;
  const LayerKv& layer = *call.layer;
  const std::int64_t stride = PartialStride(layer.shape.v_dim);
  ScoreRows(task, segments, prefetcher, rows, buffers);
  SplitSums sums[kRowsTogether];
  for (int r = 0; r < rows.count; ++r) {
    if (rows.ranges[r].empty()) continue;
    sums[r] = SoftmaxRow(buffers.scores + r * kScoreStride, rows.ranges[r], segments, call.soft_cap,
                         rows.biases[r], PrefetchInSoftmax{layer.v_type, prefetcher.split});
    if (sums[r].max == kHidden) rows.ranges[r] = {};
  }
  WeightRows(task, segments, prefetcher, rows, buffers);
  for (int r = 0; r < rows.count; ++r) {
    const float* const values = buffers.sums + r * stride;
    float* const partial = rows.partials + r * stride;
    if (rows.merge) {
      MergePartial(sums[r], values, stride, partial);
    } else {
      std::copy_n(values, stride - kCellTile, partial);
      SetSums(sums[r], stride, partial);
    }
  }
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

const float* QueryOf(const DecodeTask& task, int row) {
  return task.call->Query(TokenOf(task, row).index, HeadOf(task, row));
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
  for (int r = 0; r < R; ++r) queries[r] = QueryOf(task, first + r);
  PackQueriesFor<R>(layer, queries, R, task.call->scale, buffers.transformed,
                    buffers.q + std::int64_t{first} * layer.shape.k_dim);
}

void PackManyRows(const DecodeTask& task, int first, int count, const Buffers& buffers) {
  const int k_dim = task.call->layer->shape.k_dim;
  const float* queries[kRowsTogether];
  for (int r = 0; r < count; ++r) queries[r] = QueryOf(task, first + r);
  ManyRowKernels::Pack({queries, static_cast<std::size_t>(count)}, k_dim, task.call->scale,
                       buffers.q + std::int64_t{first} * k_dim);
}

// Packs the queries of all rows, once for all splits of the task.
void PackRows(const DecodeTask& task, const Buffers& buffers) {
  const int row_count = RowCount(task);
  const LayerKv& layer = *task.call->layer;
  for (int first = 0; first < row_count;) {
    const int left = std::min(row_count - first / kRowsTogether * kRowsTogether, kRowsTogether) -
                     first % kRowsTogether;
    if (first % kRowsTogether == 0 && InParts(layer.k_type, left)) {
      PackManyRows(task, first, left, buffers);
      first += left;
      continue;
    }
    const int count = GroupOf(left);
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
              std::span<const Segment> segments, float* partials) {
  const AttentionCall& call = *task.call;
  Rows rows;
  rows.first = first;
  rows.count = std::min(RowCount(task) - first, kRowsTogether);
  rows.partials = partials + first * PartialStride(call.layer->shape.v_dim);
  for (int r = 0; r < rows.count; ++r) {
    const QueryToken& token = TokenOf(task, first + r);
    const bool same_token = r > 0 && (first + r) % call.group() != 0;
    rows.ranges[r] = same_token ? rows.ranges[r - 1] : RangeInSplit(token.seen, split, segments);
    rows.biases[r] = call.BiasIn(token, HeadOf(task, first + r), split);
  }
  return rows;
}

std::int64_t WorkspaceFloats(const LayerKv& layer, std::int64_t rows) {
  const KvShape& shape = layer.shape;
  const bool many = rows > kRowsAtOnce;
  const std::int64_t values =
      shape.v_in_k ? std::int64_t{kSplitPositions} * RoundUp(shape.v_dim, kValuePadding) : 0;
  return (many ? kRowsTogether : kRowsAtOnce) * (kScoreStride + PartialStride(shape.v_dim)) +
         values + BlockValuesFloats(layer) + RoundUp(shape.k_dim, kCellTile) +
         (many ? ManyRowKernels::WorkspaceFloats(layer) : 0) +
         (many ? ManyRowKernels::Room(rows) : rows) * shape.k_dim;
}

Buffers CutWorkspace(const DecodeTask& task) {
  const LayerKv& layer = *task.call->layer;
  const KvShape& shape = layer.shape;
  const int v_padded = shape.v_in_k ? RoundUp(shape.v_dim, kValuePadding) : 0;
  Buffers buffers;
  const std::int64_t rows = RowCount(task) > kRowsAtOnce ? kRowsTogether : kRowsAtOnce;
  buffers.scores = task.workspace;
  buffers.sums = buffers.scores + rows * kScoreStride;
  float* const values = buffers.sums + rows * PartialStride(shape.v_dim);
  buffers.values = {&layer, task.kv_head, nullptr, values, v_padded};
  buffers.block_values = values + kSplitPositions * v_padded;
  buffers.transformed = buffers.block_values + BlockValuesFloats(layer);
  buffers.part = buffers.transformed + RoundUp(shape.k_dim, kCellTile);
  buffers.q = buffers.part + (rows > kRowsAtOnce ? ManyRowKernels::WorkspaceFloats(layer) : 0);
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
    for (int first = 0; first < row_count; first += kRowsTogether) {
      Rows rows = RowsFrom(task, first, walker.split(), walker.segments(), partials);
      rows.merge = task.merge && i > 0;
      AttendRows(task, walker.segments(), prefetcher, rows, buffers);
      prefetcher.split = {};  // the first rows have prefetched it
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
HWY_EXPORT(WorkspaceFloats);
HWY_EXPORT(MergeSplits);
HWY_EXPORT(FinishRows);

std::int64_t DecodeWorkspaceFloats(const LayerKv& layer, std::int64_t rows) {
  return HWY_DYNAMIC_DISPATCH(WorkspaceFloats)(layer, rows);
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
