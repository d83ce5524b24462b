// The 16 virtual lanes of docs/design/exactness.md, on vectors of 4, 8 or 16 floats.
//
// Compiled once per target: included after hwy/foreach_target.h, inside its guard.
#if defined(KVCACHE_BACKEND_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_SIMD_INL_H_
#undef KVCACHE_BACKEND_CPU_SIMD_INL_H_
#else
#define KVCACHE_BACKEND_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "backend/cpu/simd/highway-inl.h"

// Unrolls the loop that follows, a loop over registers with a constant count of at most 32. GCC 12
// does not accept a template argument as the number. The portable target's vectors are arrays in memory:
// unrolled loops over them take four times as long to compile, and are slower.
#undef KVCACHE_UNROLL
#if HWY_TARGET == HWY_EMU128
#define KVCACHE_UNROLL
#else
#define KVCACHE_UNROLL HWY_UNROLL(32)
#endif

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kVirtualLanes = 16;

using DF = hn::CappedTag<float, kVirtualLanes>;
using VF = hn::Vec<DF>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
inline constexpr int kRegs = kVirtualLanes / kLanes;  // registers that hold 16 lanes
static_assert(kLanes >= 4 && kRegs * kLanes == kVirtualLanes);

// The element types of weights in memory, and the conversion of a vector of them to f32.
struct LoadF32 {
  using Stored = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const Stored* p) {
    return hn::LoadU(d, p);
  }
};
struct LoadF16 {
  using Stored = hwy::float16_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const Stored* p) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<Stored, D>(), p));
  }
};
struct LoadBF16 {
  using Stored = hwy::bfloat16_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const Stored* p) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<Stored, D>(), p));
  }
};

// 16 partial sums.
struct Lanes16 {
  VF r[kRegs];
};

HWY_INLINE Lanes16 ZeroLanes() {
  Lanes16 lanes;
  KVCACHE_UNROLL
  for (int i = 0; i < kRegs; ++i) lanes.r[i] = hn::Zero(DF());
  return lanes;
}

// lane j = fma(a[j], b[j], lane j).
template <class LoadA, class LoadB>
HWY_INLINE void MulAddLanes(const typename LoadA::Stored* a, const typename LoadB::Stored* b,
                            Lanes16& sum) {
  KVCACHE_UNROLL
  for (int i = 0; i < kRegs; ++i) {
    sum.r[i] =
        hn::MulAdd(LoadA::Load(DF(), a + i * kLanes), LoadB::Load(DF(), b + i * kLanes), sum.r[i]);
  }
}

// MulAddLanes for lanes j < count only; both arrays must be readable for 16 values. The other lanes
// keep their bits, even the sign of a zero.
template <class LoadA, class LoadB>
HWY_INLINE void MulAddFirstLanes(const typename LoadA::Stored* a, const typename LoadB::Stored* b,
                                 int count, Lanes16& sum) {
  const DF d;
  KVCACHE_UNROLL
  for (int i = 0; i < kRegs; ++i) {
    const int left = count - i * kLanes;
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(left > 0 ? left : 0));
    const VF fused =
        hn::MulAdd(LoadA::Load(d, a + i * kLanes), LoadB::Load(d, b + i * kLanes), sum.r[i]);
    sum.r[i] = hn::IfThenElse(mask, fused, sum.r[i]);
  }
}

// Adds the upper half of the lanes to the lower, down to a vector of four.
template <class D>
HWY_INLINE hn::Vec<hn::Full128<float>> FoldToFour(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return FoldToFour(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Folds the lanes as a tree: lane i += lane i + 8, then 4, 2, 1.
HWY_INLINE float FoldLanes(Lanes16 lanes) {
  for (int half = kRegs / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes.r[i] = hn::Add(lanes.r[i], lanes.r[i + half]);
  }
  auto four = FoldToFour(DF(), lanes.r[0]);
  four = hn::Add(four, hn::Shuffle1032(four));
  four = hn::Add(four, hn::Shuffle2301(four));
  return hn::GetLane(four);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // KVCACHE_BACKEND_CPU_SIMD_INL_H_
