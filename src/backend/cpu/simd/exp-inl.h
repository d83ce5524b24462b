// exp and tanh for every target: attention's softmax, and soft-caps.
//
// Each function is one fixed sequence of operations per element, so that an element's result
// does not depend on its lane or on the vector's width.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_EXP_INL_H_
#undef KVCACHE_BACKEND_CPU_EXP_INL_H_
#else
#define KVCACHE_BACKEND_CPU_EXP_INL_H_
#endif

#include "backend/cpu/simd/highway-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(x) for x <= 0; 0 below -87, where results would become subnormal. exp(0) is 1 exactly.
// x = n ln 2 + r with |r| <= ln(2)/2; 1 + r + r² P(r) with P fitted for the smallest relative
// error (3e-9, far below f32's own rounding).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::MulAdd(n, hn::Set(d, -0.693145751953125f), x);
  r = hn::MulAdd(n, hn::Set(d, -1.42860677e-6f), r);
  V p = hn::MulAdd(hn::Set(d, 0x1.6a2434p-10f), r, hn::Set(d, 0x1.1239e2p-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5558f2p-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.555492p-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.fffffcp-2f));
  const V one = hn::Set(d, 1.0f);
  p = hn::MulAdd(hn::MulAdd(p, r, one), r, one);
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 127 << 23));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(p, hn::BitCast(d, power)));
}

// tanh(x): x + x³ Q(x²) below 0.625, else from exp(-2|x|).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V magnitude = hn::Abs(x);
  const V square = hn::Mul(x, x);
  V q = hn::MulAdd(hn::Set(d, -0.005704225f), square, hn::Set(d, 0.020638432f));
  q = hn::MulAdd(q, square, hn::Set(d, -0.05373952f));
  q = hn::MulAdd(q, square, hn::Set(d, 0.1333144f));
  q = hn::MulAdd(q, square, hn::Set(d, -0.3333328f));
  const V small = hn::MulAdd(hn::Mul(x, square), q, x);
  const V one = hn::Set(d, 1.0f);
  // Qualified, since Highway may declare a function of the same name.
  const V e = cpu::HWY_NAMESPACE::Exp(d, hn::Mul(magnitude, hn::Set(d, -2.0f)));
  const V large = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), small, large);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
