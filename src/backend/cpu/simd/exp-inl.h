// exp, expm1, log1p and tanh for every target: attention's softmax, activations, decays, soft-caps.
//
// Each function is one fixed sequence of operations per element (docs/design/exactness.md), so that an
// element's result does not depend on its lane or on the vector's width. base/arithmetic has the same
// sequences for single numbers: change both.

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

// a < b ? a : b, which keeps a NaN or a zero in b: the minimum of x86-64. Highway's minimum on Arm and its
// portable one take the number of a number and a NaN.
template <class V>
HWY_INLINE V Lesser(V a, V b) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return hn::Min(a, b);
#else
  return hn::IfThenElse(hn::Lt(a, b), a, b);
#endif
}
// a > b ? a : b, likewise.
template <class V>
HWY_INLINE V Greater(V a, V b) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  return hn::Max(a, b);
#else
  return hn::IfThenElse(hn::Gt(a, b), a, b);
#endif
}

// x = n ln 2 + r with |r| <= ln(2)/2 and an integer n; the power is 2^n. For -87 <= x <= 88.
template <class V>
struct ReducedExponent {
  V r;
  V power;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE ReducedExponent<V> ReduceExponent(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 0x1.715476p+0f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::MulAdd(n, hn::Set(d, -0x1.62e4p-1f), x);
  r = hn::MulAdd(n, hn::Set(d, -0x1.7f7d1cp-20f), r);
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 127 << 23));
  return {r, hn::BitCast(d, power)};
}

// P with exp(r) = 1 + r + r² P(r), fitted for the smallest relative error (3e-9, far below f32's own
// rounding).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpPolynomial(D d, V r) {
  V p = hn::MulAdd(hn::Set(d, 0x1.6a2434p-10f), r, hn::Set(d, 0x1.1239e2p-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5558f2p-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.555492p-3f));
  return hn::MulAdd(p, r, hn::Set(d, 0x1.fffffcp-2f));
}

// exp(x) for x <= 88; 0 below -87, where results would become subnormal. exp(0) is 1 exactly.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const auto reduced = ReduceExponent(d, x);
  const V p = ExpPolynomial(d, reduced.r);
  const V one = hn::Set(d, 1.0f);
  const V part = hn::MulAdd(hn::MulAdd(p, reduced.r, one), reduced.r, one);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(part, reduced.power));
}

// Exp of x, or of 88 if x is larger. The bound comes first, so that a NaN stays.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V BoundedExp(D d, V x) {
  return cpu::HWY_NAMESPACE::Exp(d, Lesser(hn::Set(d, 88.0f), x));
}

// exp(x) - 1 for x <= 88; -1 below -87.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Expm1(D d, V x) {
  const auto reduced = ReduceExponent(d, Greater(hn::Set(d, -87.0f), x));
  const V r = reduced.r;
  const V part = hn::MulAdd(hn::Mul(r, r), ExpPolynomial(d, r), r);
  return hn::MulAdd(part, reduced.power, hn::Sub(reduced.power, hn::Set(d, 1.0f)));
}

// ln(1 + x) for 0 <= x <= 1, as x - (x²/2 - s (x²/2 + R(s²))) with s = x / (2 + x).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log1p(D d, V x) {
  const V s = hn::Div(x, hn::Add(hn::Set(d, 2.0f), x));
  const V z = hn::Mul(s, s);
  V q = hn::MulAdd(hn::Set(d, 0x1.dba26p-3f), z, hn::Set(d, 0x1.bc8cf8p-3f));
  q = hn::MulAdd(q, z, hn::Set(d, 0x1.24c926p-2f));
  q = hn::MulAdd(q, z, hn::Set(d, 0x1.9998d4p-2f));
  q = hn::MulAdd(q, z, hn::Set(d, 0x1.555556p-1f));
  const V half = hn::Mul(hn::Mul(hn::Set(d, 0.5f), x), x);
  const V inner = hn::MulAdd(q, z, half);
  return hn::Sub(x, hn::NegMulAdd(s, inner, half));
}

// tanh(x): x + x³ Q(x²) below 0.625, else from exp(-2|x|).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V magnitude = hn::Abs(x);
  const V square = hn::Mul(x, x);
  V q = hn::MulAdd(hn::Set(d, -0x1.75d504p-8f), square, hn::Set(d, 0x1.5223dcp-6f));
  q = hn::MulAdd(q, square, hn::Set(d, -0x1.b83bf2p-5f));
  q = hn::MulAdd(q, square, hn::Set(d, 0x1.110724p-3f));
  q = hn::MulAdd(q, square, hn::Set(d, -0x1.555532p-2f));
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
