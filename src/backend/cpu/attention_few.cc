// Attention of few rows: decoding. One task is one KV head's split: its keys and values are
// read from memory once and serve all rows, four at a time.
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_few.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/attention_micro-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kRowsAtOnce = 4;

// One group of rows in a split.
struct Rows {
  int count = 0;
  const float* queries[kRowsAtOnce] = {};
  RowRange ranges[kRowsAtOnce] = {};
  float* partials[kRowsAtOnce] = {};
};

struct Buffers {
  float* q;       // [k_dim][kRowsAtOnce]
  float* scores;  // [kRowsAtOnce][kScoreStride]
  float* sums;    // [kRowsAtOnce][PartialStride]
};

// Scores of the cells that hold positions [begin, end) of one segment. The first tile may
// begin before them: what it has there must not reach the scores.
template <DType kType, int R>
void ScoreCells(const Storage<kType>* head, const LayerKv& layer, const Segment& segment,
                const Buffers& buffers) {
  constexpr int kTiles = !kManyRegisters ? (R <= 2 ? 2 : 1) : (R == 1 ? 8 : 4);
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

template <DType kType, int R>
void WeightSegments(const SplitTask& task, std::span<const Segment> segments, const Rows& rows,
                    const Buffers& buffers) {
  constexpr int kVectors = kManyRegisters || R <= 2 ? 4 : 2;
  constexpr int kKeysAtOnce = 32;
  const LayerKv& layer = *task.call->layer;
  const int v_dim = layer.shape.v_dim;
  const auto* const head =
      reinterpret_cast<const Storage<kType>*>(layer.v) + HeadValues(layer, task.kv_head);
  const SplitValues<kType> values{head, static_cast<std::size_t>(v_dim), v_dim, kKeysAtOnce,
                                  segments};
  WeightRows<kType, R, kVectors>(values, {rows.ranges, R}, buffers.scores, buffers.sums,
                                 static_cast<std::size_t>(PartialStride(v_dim)));
}

template <int R>
void Score(const SplitTask& task, std::span<const Segment> segments, const Buffers& buffers) {
  switch (task.call->layer->k_type) {
    case DType::kF16: return ScoreSegments<DType::kF16, R>(task, segments, buffers);
    case DType::kBF16: return ScoreSegments<DType::kBF16, R>(task, segments, buffers);
    default: return ScoreSegments<DType::kF32, R>(task, segments, buffers);
  }
}

template <int R>
void Weight(const SplitTask& task, std::span<const Segment> segments, const Rows& rows,
            const Buffers& buffers) {
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
    sums[r] =
        SoftmaxRow(buffers.scores + r * kScoreStride, rows.ranges[r], segments, call.soft_cap);
    if (sums[r].max == kHidden) rows.ranges[r] = {};
  }
  Weight<R>(task, segments, rows, buffers);
  for (int r = 0; r < R; ++r) {
    std::copy_n(buffers.sums + r * stride, stride - kCellTile, rows.partials[r]);
    rows.partials[r][stride - kCellTile] = sums[r].max;
    rows.partials[r][stride - kCellTile + 1] = sums[r].sum;
  }
}

void AttendSplit(const SplitTask& task) {
  const AttentionCall& call = *task.call;
  const KvShape& shape = call.layer->shape;
  const int group = call.group();
  const std::int64_t stride = PartialStride(shape.v_dim);
  const int row_count = static_cast<int>(task.tokens.size()) * group;
  float* const scores = task.scratch;
  float* const sums = scores + kRowsAtOnce * kScoreStride;
  const Buffers buffers{sums + kRowsAtOnce * stride, scores, sums};
  const Position base = SplitBase(task.split);
  const PositionRange part{std::max(task.seen.begin, base),
                           static_cast<Position>(std::min<std::int64_t>(
                               task.seen.end, std::int64_t{base} + kSplitPositions))};
  SplitWalker walker(task.runs, part);
  static_cast<void>(walker.Next());
  const std::span<const Segment> segments = walker.segments();
  for (int first = 0; first < row_count; first += kRowsAtOnce) {
    Rows rows;
    rows.count = std::min(kRowsAtOnce, row_count - first);
    for (int r = 0; r < rows.count; ++r) {
      const int row = first + r;
      const QueryToken& token = task.tokens[static_cast<std::size_t>(row / group)];
      rows.queries[r] = call.Query(token.index, task.kv_head * group + row % group);
      rows.ranges[r] = RangeInSplit(token.seen, task.split, segments);
      rows.partials[r] = task.partials + row * stride;
    }
    switch (rows.count) {
      case 1: AttendRows<1>(task, segments, rows, buffers); break;
      case 2: AttendRows<2>(task, segments, rows, buffers); break;
      case 3: AttendRows<3>(task, segments, rows, buffers); break;
      default: AttendRows<4>(task, segments, rows, buffers); break;
    }
  }
}

// From a kernel's lane order: the last vector may overlap the one before.
void CopyRow(const float* sums, int v_dim, float* out) {
  const DF d;
  if (v_dim < kLanes) {
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
    CopyRow(into, v_dim, call.Out(token.index, head));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu {
HWY_EXPORT(AttendSplit);
HWY_EXPORT(MergeSplits);

std::int64_t SplitScratchFloats(const KvShape& shape) {
  constexpr std::int64_t kRows = 4;
  return kRows * (kScoreStride + PartialStride(shape.v_dim) + RoundUp(shape.k_dim, kCellTile));
}

void AttendSplit(const SplitTask& task) {
  HWY_DYNAMIC_DISPATCH(AttendSplit)(task);
}
void MergeSplits(const MergeTask& task) {
  HWY_DYNAMIC_DISPATCH(MergeSplits)(task);
}

}  // namespace kvcache::cpu
#endif  // HWY_ONCE
