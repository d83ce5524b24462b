// Software prefetch for attention's loops, for every target.
//
// The hardware's prefetchers do not run far enough ahead of a loop that computes, so the loops
// prefetch what they read next from memory. There are two cases:
//
//   StreamPrefetch   float types: a loop prefetches a fixed distance ahead of its own reads. A
//                    StreamLink makes the distance reach past the end of a task's cells into the
//                    cells that the thread will probably read next.
//   SplitPrefetch    block types: while one split is computed, all of its steps together prefetch
//                    the keys and values of the next split, a few lines each.
//
// All prefetches go into the second-level cache. The first level has few fill buffers; they are
// left to the loop's own loads (docs/design/attention.md has the measurements). A prefetch never
// faults and never changes a result, whatever the address.
//
// Thread safety: values; each task has its own.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_PREFETCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_PREFETCH_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_PREFETCH_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_PREFETCH_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/simd/highway-inl.h"
#include "backend/cpu/simd/simd-inl.h"
#include "kvcache/types.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE void PrefetchToL2(std::uintptr_t address) {
#if HWY_COMPILER_GCC  // Clang too
  __builtin_prefetch(reinterpret_cast<const char*>(address), 0, 2);
#endif
}

// Links the end of the memory that a task reads to the memory that its thread reads next.
struct StreamLink {
  // Addresses less than this behind `end` are moved to `next`. It is far more than a loop
  // prefetches ahead; addresses further behind belong to another piece of the history.
  static constexpr std::uintptr_t kMaxDistance = 1 << 18;

  std::uintptr_t end = 0;
  std::uintptr_t next = 0;

  // Returns `address`, or the corresponding one behind `next` if it lies behind `end`.
  HWY_INLINE std::uintptr_t Follow(std::uintptr_t address) const {
    const std::uintptr_t behind = address - end;
    return behind < kMaxDistance ? next + behind : address;
  }
};

// Prefetches ahead of one loop that reads a stream of memory in equal steps.
struct StreamPrefetch {
  static constexpr std::ptrdiff_t kMinDistance = 24576;

  std::uintptr_t at = 0;
  std::ptrdiff_t step = 0;  // bytes for each step of the loop
  StreamLink link = {};

  // For a loop that reads the `bytes` from `from` on, `step` of them per step in any order. The
  // distance is at least `bytes`: nothing that the loop itself reads is prefetched.
  template <class T>
  static HWY_INLINE StreamPrefetch Ahead(const T* from, std::ptrdiff_t bytes, std::ptrdiff_t step,
                                         const StreamLink& link) {
    const std::ptrdiff_t distance = std::max(kMinDistance, bytes);
    return {reinterpret_cast<std::uintptr_t>(from) + static_cast<std::uintptr_t>(distance), step,
            link};
  }

  // Prefetches kLines lines, spread evenly over one step, and advances by a step.
  template <int kLines>
  HWY_INLINE void Advance() {
    KVCACHE_UNROLL
    for (int i = 0; i < kLines; ++i) {
      PrefetchToL2(link.Follow(at + static_cast<std::uintptr_t>(i * (step / kLines))));
    }
    at += static_cast<std::uintptr_t>(step);
  }
};

// Prefetches what the next split reads of block types, a few lines in each step of the current
// split, so that memory is never idle. A phase that prefetched everything at once would wait for
// memory itself, and memory would idle in the phases after it.
class SplitPrefetch {
 public:
  struct Range {
    std::uintptr_t begin = 0;
    std::int64_t bytes = 0;
  };
  SplitPrefetch() = default;  // prefetches nothing
  // Prefetches `first`, then `second`.
  SplitPrefetch(Range first, Range second)
      : at_(first.begin), end_(End(first)), second_(second), one_range_(second.bytes == 0) {}

  // Whether there is one range only: the steps over keys then prefetch all of it.
  bool HasOneRange() const { return one_range_; }

  // Returns the address of the next kLines lines, for a loop that prefetches them one by one. If none
  // are left, returns an address that is in the first-level cache.
  template <int kLines>
  HWY_INLINE std::uintptr_t Take() {
    const std::uintptr_t at = at_;
    if (at >= end_) return reinterpret_cast<std::uintptr_t>(this);
    at_ = at + kLines * 64;
    if (at_ >= end_ && second_.bytes > 0) StartSecond();
    return at;
  }

  // Prefetches the next kLines lines, if any are left.
  template <int kLines>
  HWY_INLINE void Advance() {
    if (at_ >= end_) return;
    const std::uintptr_t at = Take<kLines>();
    KVCACHE_UNROLL
    for (int i = 0; i < kLines; ++i) PrefetchToL2(at + i * 64);
  }

 private:
  static std::uintptr_t End(const Range& range) {
    return range.begin + static_cast<std::uintptr_t>(range.bytes);
  }
  void StartSecond() {
    at_ = second_.begin;
    end_ = End(second_);
    second_ = {};
  }

  std::uintptr_t at_ = 0;
  std::uintptr_t end_ = 0;
  Range second_;
  bool one_range_ = false;
};

// All that the loops over one split prefetch: the next split of block types, or the links of the
// streams of keys and values of float types.
struct Prefetcher {
  SplitPrefetch split;
  StreamLink keys;
  StreamLink values;
};

// Lines per step of SplitPrefetch, chosen so that with four rows the prefetches of the next split
// end together with the current one. If they ended earlier, memory would idle for the rest; if
// later, the last lines would never be prefetched.
template <DType kType>
struct PrefetchRate;
template <>
struct PrefetchRate<DType::kQ8_0> {
  static constexpr int kKeys = 5;     // per quantisation block of a tile of keys
  static constexpr int kSoftmax = 2;  // per tile and row: weights
  static constexpr int kScales = 1;   // per tile of values: weights times scales
  static constexpr int kCodes = 1;    // per tile of values: products made integers
  static constexpr int kSums = 2;     // per four cells of a tile of values
};
template <>
struct PrefetchRate<DType::kQ4_0> {
  static constexpr int kKeys = 2;
  static constexpr int kSoftmax = 1;
  static constexpr int kScales = 1;
  static constexpr int kCodes = 1;
  static constexpr int kSums = 1;
};

// For SoftmaxRow, which calls it for each tile of a row's weights. It is here because SoftmaxRow is
// compiled without the dot products' instructions, and could not inline code that has them.
struct PrefetchInSoftmax {
  DType v_type;
  SplitPrefetch& split;

  HWY_INLINE void operator()() const {
    if (v_type == DType::kQ8_0) split.Advance<PrefetchRate<DType::kQ8_0>::kSoftmax>();
    if (v_type == DType::kQ4_0) split.Advance<PrefetchRate<DType::kQ4_0>::kSoftmax>();
  }
};

// All lines of one quantisation block of a tile, with its scales.
template <DType kType>
inline constexpr int kBlockLines = kType == DType::kQ8_0 ? 9 : 5;

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
