// Decode attention's kernels for keys and values of f16 and bf16 and many rows (decode/types-inl.h).
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/decode/many_rows.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/decode/types-inl.h"
#include "backend/cpu/common/kv_convert-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// Rows of a group: the sums of kLargeGroup rows and two vectors fit into the registers. Fewer rows make smaller
// groups, or fill one up.
inline constexpr int kLargeGroup = kRegs == 1 ? 12 : 6;
inline constexpr int kMiddleGroup = kRegs == 1 ? 8 : 4;
inline constexpr int kSmallGroup = kRegs == 1 ? 4 : 2;
// Tiles of keys of a part: two vectors of each key.
inline constexpr int kPartTiles = kRegs == 1 ? 2 : 1;
// The bytes of values, as the loops read them, that all groups are multiplied with before the next ones.
inline constexpr int kPartBytes = 16384;
// Whether parts are widened to f32 first: AVX-512 widens for a large group beside its multiply-adds.
inline constexpr bool kWidensParts = kRegs > 1;

constexpr int RowGroupOf(int left) {
  if (left <= kSmallGroup) return kSmallGroup;
  if (left <= kMiddleGroup) return kMiddleGroup;
  // Two middle groups, rather than a large one and a rest that takes as long as a middle one.
  return left > kLargeGroup && left <= 2 * kMiddleGroup ? kMiddleGroup : kLargeGroup;
}

// Calls of_rows<R>(first, count) for each group: its first row, and its rows without those that fill it up.
template <class OfRows>
HWY_INLINE void ForGroups(int rows, const OfRows& of_rows) {
  for (int first = 0; first < rows;) {
    const int left = rows - first;
    const int group = RowGroupOf(left);
    const int count = std::min(group, left);
    if (group == kLargeGroup) {
      of_rows.template operator()<kLargeGroup>(first, count);
    } else if (group == kMiddleGroup) {
      of_rows.template operator()<kMiddleGroup>(first, count);
    } else {
      of_rows.template operator()<kSmallGroup>(first, count);
    }
    first += count;
  }
}

// The type that the loops read of keys or values that are stored as kType.
template <DType kType>
inline constexpr DType kReadType = kWidensParts ? DType::kF32 : kType;

// Returns `count` neighbouring values as the loops read them.
template <DType kType>
const Storage<kReadType<kType>>* Part(const Storage<kType>* from, std::int64_t count,
                                      [[maybe_unused]] float* workspace) {
  if constexpr (kWidensParts) {
    WidenRow<kType>(from, static_cast<std::size_t>(count), workspace);
    return workspace;
  } else {
    return from;
  }
}

// For the first group's loop, which has `steps` steps: prefetches as many values as it has, behind them.
StreamPrefetch PrefetchBehind(const std::uint16_t* from, std::int64_t count, std::int64_t steps,
                              const StreamLink& stream) {
  const auto bytes = count * static_cast<std::int64_t>(sizeof(*from));
  return StreamPrefetch::Ahead(from, bytes, bytes / steps, stream);
}

std::int64_t CellsAtOnce(int v_dim) {
  constexpr std::int64_t kValues =
      kPartBytes / (kWidensParts ? sizeof(float) : sizeof(std::uint16_t));
  return std::max<std::int64_t>(kValues / v_dim / kCellTile, 1) * kCellTile;
}

std::int64_t ManyRowKernels::WorkspaceFloats(const LayerKv& layer) {
  if (!kWidensParts) return 0;
  const std::int64_t keys = std::int64_t{layer.shape.k_dim} * kPartTiles * kCellTile;
  const std::int64_t values = CellsAtOnce(layer.shape.v_dim) * layer.shape.v_dim;
  return RoundUp<std::int64_t>(std::max(keys, values), kCellTile);
}

void ManyRowKernels::Pack(std::span<const float* const> queries, int k_dim, float scale, float* q) {
  ForGroups(static_cast<int>(queries.size()), [&]<int R>(int first, int count) HWY_ATTR {
    PackQueries<R>(queries.data() + first, count, k_dim, scale, q + std::int64_t{first} * k_dim);
  });
}

// Scores of R rows against the tiles of a part.
template <DType kType, int R, int kLines>
void ScorePart(const Storage<kType>* tiles, int k_dim, const Segment& part, const float* q,
               float* scores, StreamPrefetch prefetch) {
  const int lane = part.cell % kCellTile;
  const int cells = part.end - part.begin;
  if (lane == 0 && cells > (kPartTiles - 1) * kCellTile) {
    ScoreTiles<kType, R, kPartTiles, kLines>(tiles, k_dim, q, scores, kScoreStride, prefetch);
    return;
  }
  HWY_ALIGN float whole[R * kPartTiles * kCellTile];
  for (int t = 0; t * kCellTile < lane + cells; ++t) {
    ScoreTiles<kType, R, 1, 0>(tiles + t * kCellTile * k_dim, k_dim, q, whole + t * kCellTile,
                               kPartTiles * kCellTile);
  }
  for (int r = 0; r < R; ++r) {
    std::copy_n(whole + r * kPartTiles * kCellTile + lane, cells, scores + r * kScoreStride);
  }
}

template <DType kType>
void ScoreParts(const LayerKv& layer, int kv_head, const ScoredRows& rows, int count,
                float* workspace) {
  const int k_dim = layer.shape.k_dim;
  const auto* const head =
      reinterpret_cast<const Storage<kType>*>(layer.k) + HeadKeys(layer, kv_head);
  ForParts(rows.segments, kPartTiles * kCellTile, [&](const Segment& part) HWY_ATTR {
    const int cells = part.cell % kCellTile + part.end - part.begin;
    const std::int64_t keys = RoundUp<std::int64_t>(cells, kCellTile) * k_dim;
    const auto* const from = head + KeyTile(layer, part.cell);
    const auto* const tiles = Part<kType>(from, keys, workspace);
    const StreamPrefetch prefetch = PrefetchBehind(from, keys, k_dim, rows.prefetcher->keys);
    ForGroups(count, [&]<int R>(int first, int) HWY_ATTR {
      float* const scores = rows.scores + first * kScoreStride + part.begin;
      const float* const q = rows.q + std::int64_t{first} * k_dim;
      if (first == 0) {
        ScorePart<kReadType<kType>, R, 1>(tiles, k_dim, part, q, scores, prefetch);
      } else {
        ScorePart<kReadType<kType>, R, 0>(tiles, k_dim, part, q, scores, {});
      }
    });
  });
}

void ManyRowKernels::Score(const LayerKv& layer, int kv_head, const ScoredRows& rows, int count,
                           float* workspace) {
  if (layer.k_type == DType::kF16) {
    return ScoreParts<DType::kF16>(layer, kv_head, rows, count, workspace);
  }
  ScoreParts<DType::kBF16>(layer, kv_head, rows, count, workspace);
}

// sums[r][i] += Σ_j weights[r][j] v[j][i] over `cells` rows of values. Each pass over them prefetches its share.
template <DType kType, int R, int kLines>
void WeightCellsOf(const Storage<kType>* v, int v_dim, const float* weights, int cells, float* sums,
                   std::size_t sum_stride, StreamPrefetch prefetch) {
  constexpr int kVectors = R == kSmallGroup ? 4 : 2;
  const auto stride = static_cast<std::size_t>(v_dim);
  if (v_dim < kLanes) {
    for (int i = 0; i < v_dim; ++i) {
      WeightValues<hn::CappedTag<float, 1>, kType, R, 1, 0>(v + i, stride, 0, weights, cells,
                                                            sums + i, sum_stride);
    }
    return;
  }
  const auto first_of = [&](int vector) { return std::min(vector * kLanes, v_dim - kLanes); };
  const int vectors = (v_dim + kLanes - 1) / kLanes;
  int i = 0;
  for (; i + kVectors <= vectors; i += kVectors) {
    const auto last = static_cast<std::size_t>(first_of(i + kVectors - 1) - first_of(i));
    WeightValues<DF, kType, R, kVectors, kLines>(v + first_of(i), stride, last, weights, cells,
                                                 sums + i * kLanes, sum_stride, prefetch);
    prefetch.at += static_cast<std::uintptr_t>(prefetch.step * cells);
  }
  for (; i < vectors; ++i) {
    WeightValues<DF, kType, R, 1, 0>(v + first_of(i), stride, 0, weights, cells, sums + i * kLanes,
                                     sum_stride);
  }
}

// Adds the sums of one group over a part whose values are in `v`. Rows that see all of it are multiplied together; a
// row without a range in the split is one of them, since its sums do not matter.
template <DType kType, int R, int kLines>
void WeightPart(const Storage<kType>* v, int v_dim, const Segment& part, const WeightedRows& rows,
                int first, int count, StreamPrefetch prefetch) {
  const float* const weights = rows.weights + first * kScoreStride;
  float* const sums = rows.sums + static_cast<std::size_t>(first) * rows.sum_stride;
  const std::span<const RowRange> ranges =
      rows.ranges.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  const auto sees_all = [&](const RowRange& range) {
    return range.empty() || (range.begin <= part.begin && range.end >= part.end);
  };
  if (std::all_of(ranges.begin(), ranges.end(), sees_all)) {
    WeightCellsOf<kType, R, kLines>(v, v_dim, weights + part.begin, part.end - part.begin, sums,
                                    rows.sum_stride, prefetch);
    return;
  }
  for (int r = 0; r < count; ++r) {
    const RowRange& range = ranges[static_cast<std::size_t>(r)];
    const int begin = std::max(range.begin, part.begin);
    const int end = std::min(range.end, part.end);
    if (begin >= end) continue;
    WeightCellsOf<kType, 1, 0>(v + static_cast<std::ptrdiff_t>(begin - part.begin) * v_dim, v_dim,
                               weights + r * kScoreStride + begin, end - begin,
                               sums + static_cast<std::size_t>(r) * rows.sum_stride,
                               rows.sum_stride, {});
  }
}

template <DType kType>
void WeightParts(const LayerKv& layer, int kv_head, const WeightedRows& rows, float* workspace,
                 const StreamLink& stream) {
  const int v_dim = layer.shape.v_dim;
  const auto count = static_cast<int>(rows.ranges.size());
  // The first group passes over two vectors of all cells at a time.
  const std::int64_t passes = std::max(v_dim / (2 * kLanes), 1);
  const auto* const head =
      reinterpret_cast<const Storage<kType>*>(layer.v) + HeadValues(layer, kv_head);
  std::fill_n(rows.sums, kRowsTogether * rows.sum_stride, 0.0f);
  ForParts(rows.segments, static_cast<int>(CellsAtOnce(v_dim)), [&](const Segment& part) HWY_ATTR {
    const std::int64_t cells = part.end - part.begin;
    const auto* const from = head + std::int64_t{part.cell} * v_dim;
    const auto* const v = Part<kType>(from, cells * v_dim, workspace);
    const StreamPrefetch prefetch = PrefetchBehind(from, cells * v_dim, cells * passes, stream);
    ForGroups(count, [&]<int R>(int first, int in_group) HWY_ATTR {
      if (first == 0) {
        WeightPart<kReadType<kType>, R, 1>(v, v_dim, part, rows, first, in_group, prefetch);
      } else {
        WeightPart<kReadType<kType>, R, 0>(v, v_dim, part, rows, first, in_group, {});
      }
    });
  });
}

void ManyRowKernels::Weight(const LayerKv& layer, int kv_head, const WeightedRows& rows,
                            float* workspace, const StreamLink& stream) {
  if (layer.v_type == DType::kF16) {
    return WeightParts<DType::kF16>(layer, kv_head, rows, workspace, stream);
  }
  WeightParts<DType::kBF16>(layer, kv_head, rows, workspace, stream);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();
