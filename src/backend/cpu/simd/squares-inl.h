// The sums of a row's values and of their squares, for every target; norms of hidden states, heads, keys and
// queries use them. They sum in the 64 virtual lanes of docs/design/exactness.md, whatever the vector's width.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_SQUARES_INL_H_
#undef KVCACHE_BACKEND_CPU_SQUARES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_SQUARES_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// A step of a lane's sum.
struct AddSquare {
  HWY_INLINE VF operator()(VF sum, VF x) const { return hn::MulAdd(x, x, sum); }
};
struct AddValue {
  HWY_INLINE VF operator()(VF sum, VF x) const { return hn::Add(sum, x); }
};

template <class Step>
HWY_INLINE void AddLanes(const float* x, const Step& step, Lanes16& sum) {
  KVCACHE_UNROLL
  for (int r = 0; r < kRegs; ++r) sum.r[r] = step(sum.r[r], hn::LoadU(DF(), x + r * kLanes));
}

// AddLanes for the first `count` of 16 values; the other lanes keep their bits.
template <class Step>
HWY_INLINE void AddFirstLanes(const float* x, std::int64_t count, const Step& step, Lanes16& sum) {
  const DF d;
  HWY_ALIGN float values[kVirtualLanes] = {};
  std::memcpy(values, x, static_cast<std::size_t>(count) * sizeof(float));
  for (int r = 0; r < kRegs; ++r) {
    const auto left = static_cast<int>(count) - r * kLanes;
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(left > 0 ? left : 0));
    const VF added = step(sum.r[r], hn::Load(d, values + r * kLanes));
    sum.r[r] = hn::IfThenElse(mask, added, sum.r[r]);
  }
}

HWY_INLINE void AddToLanes(const Lanes16& from, Lanes16& to) {
  KVCACHE_UNROLL
  for (int r = 0; r < kRegs; ++r) to.r[r] = hn::Add(to.r[r], from.r[r]);
}

template <class Step>
HWY_INLINE float SumInLanes(const float* x, std::int64_t width, const Step& step) {
  Lanes16 sums[4];
  KVCACHE_UNROLL
  for (Lanes16& sum : sums) sum = ZeroLanes();
  std::int64_t i = 0;
  for (; i + 4 * kVirtualLanes <= width; i += 4 * kVirtualLanes) {
    KVCACHE_UNROLL
    for (int part = 0; part < 4; ++part) AddLanes(x + i + part * kVirtualLanes, step, sums[part]);
  }
  for (int part = 0; i < width; ++part, i += kVirtualLanes) {
    if (i + kVirtualLanes <= width) {
      AddLanes(x + i, step, sums[part]);
    } else {
      AddFirstLanes(x + i, width - i, step, sums[part]);
    }
  }
  AddToLanes(sums[2], sums[0]);
  AddToLanes(sums[3], sums[1]);
  AddToLanes(sums[1], sums[0]);
  return FoldLanes(sums[0]);
}

HWY_INLINE float SumOfSquares(const float* x, std::int64_t width) {
  return SumInLanes(x, width, AddSquare());
}
HWY_INLINE float SumOfValues(const float* x, std::int64_t width) {
  return SumInLanes(x, width, AddValue());
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
