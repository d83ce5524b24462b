// Sine and cosine in f64, for every target with fused multiply-add. Without it the reduction of large angles
// would lose all bits: the portable target takes base/arithmetic/angles.h, which has the same sequence for
// single numbers (change both).

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ANGLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ANGLES_INL_H_
#undef KVCACHE_BACKEND_CPU_ANGLES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ANGLES_INL_H_
#endif

#include <cstdint>

#include "backend/cpu/simd/highway-inl.h"
#include "base/arithmetic/angles.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_EMU128

// D: a tag of f64.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void SinCos(D d, V angle, V& sine, V& cosine) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, 0x1.8p52);
  const V shifted = hn::MulAdd(angle, hn::Set(d, 0x1.45f306dc9c883p-1), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::MulAdd(n, hn::Set(d, -0x1.921fb54442d18p+0), angle);
  r = hn::MulAdd(n, hn::Set(d, -0x1.1a62633145c07p-54), r);
  const V z = hn::Mul(r, r);
  V s = hn::MulAdd(hn::Set(d, -1.0 / 1307674368000.0), z, hn::Set(d, 1.0 / 6227020800.0));
  V c = hn::MulAdd(hn::Set(d, 1.0 / 20922789888000.0), z, hn::Set(d, -1.0 / 87178291200.0));
  for (const double k :
       {-1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0}) {
    s = hn::MulAdd(s, z, hn::Set(d, k));
  }
  for (const double k :
       {1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5}) {
    c = hn::MulAdd(c, z, hn::Set(d, k));
  }
  const V of_r = hn::MulAdd(hn::Mul(r, z), s, r);
  const V of_rest = hn::MulAdd(z, c, hn::Set(d, 1.0));
  const auto quadrant = hn::BitCast(du, shifted);
  const auto one = hn::Set(du, 1);
  const auto two = hn::Set(du, 2);
  const auto odd = hn::MaskFromVec(hn::BitCast(d, hn::Sub(hn::Zero(du), hn::And(quadrant, one))));
  const V first = hn::IfThenElse(odd, of_rest, of_r);
  const V second = hn::IfThenElse(odd, of_r, of_rest);
  // Bit 1 becomes the sign.
  const auto negative = hn::ShiftLeft<62>(hn::And(quadrant, two));
  const auto other = hn::ShiftLeft<62>(hn::And(hn::Add(quadrant, one), two));
  sine = hn::Xor(first, hn::BitCast(d, negative));
  cosine = hn::Xor(second, hn::BitCast(d, other));
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
