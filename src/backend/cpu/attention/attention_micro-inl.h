// The two inner loops of attention, for every target: scores of R rows against tiles of keys,
// and R rows' weighted sums of values. A row is one query of one head.
//
// Each score is one chain over k_dim and each weighted sum one chain over positions, whatever
// R and the number of vectors: those only say how much is done at once.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "backend/cpu/attention/attention_math-inl.h"
#include "backend/cpu/kv/kv_convert-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// AVX-512 and NEON have 32 registers, the others 16.
inline constexpr bool kManyRegisters = HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_EMU128;

// Where a loop's stream comes from: the cache's memory, or scratch that is in a processor's
// own caches already.
enum class Stream { kMemory, kScratch };

// Where what a task reads of keys or of values ends, and where its thread goes on to read.
struct StreamEnd {
  // Far more than a loop asks ahead: what lies further behind the end is another piece of history.
  static constexpr std::uintptr_t kReach = 1 << 18;

  std::uintptr_t end = 0;
  std::uintptr_t then = 0;

  // `address`, or what is read instead of what lies behind the end.
  HWY_INLINE std::uintptr_t Continue(std::uintptr_t address) const {
    const std::uintptr_t behind = address - end;
    return behind < kReach ? then + behind : address;
  }
};

// A loop asks for what follows in memory: the hardware's own streams do not run ahead far enough
// while a loop computes. Into the second level: the first level's few fill buffers are then left to
// what the loop itself reads (docs/design/attention.md has the measurements). Whatever the address,
// a request changes no result.
struct Fetch {
  static constexpr std::ptrdiff_t kAhead = 24576;

  std::uintptr_t at = 0;
  std::ptrdiff_t step = 0;  // bytes for each step of the loop
  StreamEnd stream = {};

  // For a loop that reads the `bytes` from `from` on, `step` of them in each step, wherever in
  // them: it asks for what lies behind them all.
  template <class T>
  static HWY_INLINE Fetch Ahead(const T* from, std::ptrdiff_t bytes, std::ptrdiff_t step,
                                const StreamEnd& stream) {
    const std::ptrdiff_t ahead = std::max(kAhead, bytes);
    return {reinterpret_cast<std::uintptr_t>(from) + static_cast<std::uintptr_t>(ahead), step,
            stream};
  }

  static HWY_INLINE void IntoSecondLevel(std::uintptr_t address) {
#if HWY_COMPILER_GCC  // Clang too
    __builtin_prefetch(reinterpret_cast<const char*>(address), 0, 2);
#endif
  }

  // kLines, evenly over a step.
  template <int kLines>
  HWY_INLINE void Next() {
    KVCACHE_UNROLL
    for (int i = 0; i < kLines; ++i) {
      IntoSecondLevel(stream.Continue(at + static_cast<std::uintptr_t>(i * (step / kLines))));
    }
    at += static_cast<std::uintptr_t>(step);
  }
};

// What the next split reads of block types, asked for into the second-level cache while this one
// is computed: a few lines in each step, so that memory is never idle. A phase that asked for all
// it reads at once would wait for memory itself, and memory for the phases after it.
class Successors {
 public:
  struct Stretch {
    std::uintptr_t first = 0;
    std::int64_t bytes = 0;
  };
  Successors() = default;  // none
  Successors(Stretch first, Stretch second)
      : at_(first.first), end_(End(first)), second_(second), alone_(second.bytes == 0) {}

  // Where there are no values to follow, keys ask for all of the next ones themselves.
  bool AreKeysAlone() const { return alone_; }

  template <int kLines>
  HWY_INLINE void Request() {
    if (at_ >= end_) return;
    KVCACHE_UNROLL
    for (int i = 0; i < kLines; ++i) Fetch::IntoSecondLevel(at_ + i * 64);
    at_ += kLines * 64;
    if (at_ >= end_ && second_.bytes > 0) GoOn();
  }

 private:
  static std::uintptr_t End(const Stretch& stretch) {
    return stretch.first + static_cast<std::uintptr_t>(stretch.bytes);
  }
  void GoOn() {
    at_ = second_.first;
    end_ = End(second_);
    second_ = {};
  }

  std::uintptr_t at_ = 0;
  std::uintptr_t end_ = 0;
  Stretch second_;
  bool alone_ = false;
};

// What a split's loops ask for: of block types the next split, evenly; of the others what lies
// ahead of each loop, up to the end of what the task reads and then of what follows it.
struct Upcoming {
  Successors blocks;
  StreamEnd keys;
  StreamEnd values;
};

// Lines for each step, such that four rows' requests for the next split end when this one does:
// earlier and memory is idle for the rest, later and some are never made.
template <DType kType>
struct Pace;
template <>
struct Pace<DType::kQ8_0> {
  static constexpr int kKeys = 5;  // a tile's block
  static constexpr int kScales = 1;
  static constexpr int kCodes = 1;
  static constexpr int kSums = 2;  // four cells
};
template <>
struct Pace<DType::kQ4_0> {
  static constexpr int kKeys = 1;
  static constexpr int kScales = 1;
  static constexpr int kCodes = 1;
  static constexpr int kSums = 1;
};
// All lines of a tile's block, scales and all.
template <DType kType>
inline constexpr int kBlockLines = kType == DType::kQ8_0 ? 9 : 5;

// scores[r][0, 16 NT) = Σ_d q[d][r] k[tile][d][lane] for NT neighbouring tiles.
template <DType kType, int R, int NT>
HWY_INLINE void ScoreTiles(const Storage<kType>* HWY_RESTRICT k, int k_dim,
                           const float* HWY_RESTRICT q, float* HWY_RESTRICT scores,
                           std::size_t score_stride, Fetch fetch) {
  constexpr int kVectors = NT * kRegs;
  constexpr int kLines = (NT * kCellTile * static_cast<int>(sizeof(Storage<kType>)) + 63) / 64;
  const DF d;
  const std::size_t tile_size = static_cast<std::size_t>(k_dim) * kCellTile;
  VF sum[R][kVectors];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int i = 0; i < k_dim; ++i, k += kCellTile, q += R) {
    VF key[kVectors];
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const std::size_t tile = static_cast<std::size_t>(v / kRegs);
      key[v] = LoadWide<kType>(d, k + tile * tile_size + v % kRegs * kLanes);
    }
    fetch.Next<kLines>();
    KVCACHE_UNROLL
    for (int r = 0; r < R; ++r) {
      const VF query = hn::Set(d, q[r]);
      KVCACHE_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(query, key[v], sum[r][v]);
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[r][v], d, scores + r * score_stride + v * kLanes);
    }
  }
}

// sums[r][i] += Σ_j weights[r][j] v[j][…] for `keys` values `v_stride` apart and NV vectors of
// them; the last vector lies `last` values from the first one's start.
template <class D, DType kType, int R, int NV, Stream kFrom>
HWY_INLINE void WeightValues(const Storage<kType>* HWY_RESTRICT v, std::size_t v_stride,
                             std::size_t last, const float* HWY_RESTRICT weights, int keys,
                             float* HWY_RESTRICT sums, std::size_t sum_stride, Fetch fetch = {}) {
  constexpr int kLines =
      (NV * static_cast<int>(hn::MaxLanes(D()) * sizeof(Storage<kType>)) + 63) / 64;
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[R][NV];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int i = 0; i < NV; ++i) sum[r][i] = hn::LoadU(d, sums + r * sum_stride + i * lanes);
  }
  for (int j = 0; j < keys; ++j, v += v_stride) {
    hn::Vec<D> value[NV];
    KVCACHE_UNROLL
    for (int i = 0; i + 1 < NV; ++i) value[i] = LoadWide<kType>(d, v + i * lanes);
    value[NV - 1] = LoadWide<kType>(d, v + last);
    if (kFrom == Stream::kMemory) fetch.Next<kLines>();
    KVCACHE_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto weight = hn::Set(d, weights[r * kScoreStride + j]);
      KVCACHE_UNROLL
      for (int i = 0; i < NV; ++i) sum[r][i] = hn::MulAdd(weight, value[i], sum[r][i]);
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int i = 0; i < NV; ++i) hn::StoreU(sum[r][i], d, sums + r * sum_stride + i * lanes);
  }
}

// What all rows that see anything see together; if there is no such range, an empty one at
// the split's end.
HWY_INLINE RowRange CommonRange(std::span<const RowRange> ranges) {
  RowRange common{0, kSplitPositions};
  bool any = false;
  for (const RowRange& range : ranges) {
    if (range.empty()) continue;
    any = true;
    common.begin = std::max(common.begin, range.begin);
    common.end = std::min(common.end, range.end);
  }
  return any && !common.empty() ? common : RowRange{kSplitPositions, kSplitPositions};
}

// Cuts the rows' ranges so that every row's positions come in ascending order: together(range)
// for what all of them see, alone(row, range) for the rest. A key that a row does not see is
// thus never multiplied with it, and its content cannot matter.
template <class Together, class Alone>
HWY_INLINE void ForRanges(std::span<const RowRange> ranges, const Together& together,
                          const Alone& alone) {
  const RowRange common = CommonRange(ranges);
  const auto each_row = [&](RowRange part) HWY_ATTR {
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      const RowRange range{std::max(ranges[r].begin, part.begin),
                           std::min(ranges[r].end, part.end)};
      if (!range.empty()) alone(r, range);
    }
  };
  each_row({0, common.begin});
  if (!common.empty()) together(common);
  each_row({common.end, kSplitPositions});
}

// q[d][R] = scale × the rows' queries; rows from `rows` on repeat the first.
template <int R>
HWY_INLINE void PackQueries(const float* const* queries, int rows, int k_dim, float scale,
                            float* HWY_RESTRICT q) {
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = queries[r < rows ? r : 0];
  for (int d = 0; d < k_dim; ++d, q += R) {
    KVCACHE_UNROLL
    for (int r = 0; r < R; ++r) q[r] = row[r][d] * scale;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
