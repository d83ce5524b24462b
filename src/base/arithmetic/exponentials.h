// exp, expm1, log1p and tanh in f32, each one fixed sequence of operations
// (docs/design/exactness.md). They differ from the exact value by less than 2 ulp (exp: 1), and a
// NaN gives a NaN. src/backend/cpu/simd/exp-inl.h has the same sequences for vectors: change both.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "base/arithmetic/operations.h"

namespace kvcache::arithmetic {

// x = n ln 2 + r with |r| <= ln(2)/2 and an integer n.
struct ReducedExponent {
  float r;
  float power;  // 2^n
};

// REQUIRES: -87 <= x <= 88. Any other x gives bits without meaning.
KVCACHE_ARITHMETIC ReducedExponent ReduceExponent(float x) {
  // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float kMagic = 12582912.0f;
  const float shifted = Fma(x, 0x1.715476p+0f, kMagic);
  const float n = Sub(shifted, kMagic);
  float r = Fma(n, -0x1.62e4p-1f, x);
  r = Fma(n, -0x1.7f7d1cp-20f, r);
  return {r, FloatOf((BitsOf(shifted) << 23) + (127U << 23))};
}

// P with exp(r) = 1 + r + r² P(r), fitted for the smallest relative error of exp (3e-9).
KVCACHE_ARITHMETIC float ExpPolynomial(float r) {
  float p = Fma(0x1.6a2434p-10f, r, 0x1.1239e2p-7f);
  p = Fma(p, r, 0x1.5558f2p-5f);
  p = Fma(p, r, 0x1.555492p-3f);
  return Fma(p, r, 0x1.fffffcp-2f);
}

// exp(x); 0 below -87, where results would become subnormal. Exp(±0) is 1 exactly.
// REQUIRES: x <= 88, or NaN.
KVCACHE_ARITHMETIC float Exp(float x) {
  const ReducedExponent reduced = ReduceExponent(x);
  const float p = ExpPolynomial(reduced.r);
  const float part = Fma(Fma(p, reduced.r, 1.0f), reduced.r, 1.0f);
  const float result = Mul(part, reduced.power);
  return x < -87.0f ? 0.0f : result;
}

// Exp of x, or of 88 if x is larger: for any x.
KVCACHE_ARITHMETIC float BoundedExp(float x) {
  return Exp(Min(88.0f, x));
}

// exp(x) - 1, -1 below -87. Expm1(±0) is 0. REQUIRES: x <= 88, or NaN.
KVCACHE_ARITHMETIC float Expm1(float x) {
  const ReducedExponent reduced = ReduceExponent(Max(-87.0f, x));
  const float r = reduced.r;
  const float part = Fma(Mul(r, r), ExpPolynomial(r), r);
  return Fma(part, reduced.power, Sub(reduced.power, 1.0f));
}

// ln(1 + x) as x - (x²/2 - s (x²/2 + R(s²))) with s = x / (2 + x). REQUIRES: 0 <= x <= 1, or NaN.
KVCACHE_ARITHMETIC float Log1p(float x) {
  const float s = Div(x, Add(2.0f, x));
  const float z = Mul(s, s);
  float q = Fma(0x1.dba26p-3f, z, 0x1.bc8cf8p-3f);
  q = Fma(q, z, 0x1.24c926p-2f);
  q = Fma(q, z, 0x1.9998d4p-2f);
  q = Fma(q, z, 0x1.555556p-1f);
  const float half = Mul(Mul(0.5f, x), x);
  const float inner = Fma(q, z, half);
  return Sub(x, Fma(-s, inner, half));
}

// tanh(x), for any x: x + x³ Q(x²) below 0.625, else from exp(-2|x|).
KVCACHE_ARITHMETIC float Tanh(float x) {
  const float magnitude = Abs(x);
  if (magnitude < 0.625f) {
    const float square = Mul(x, x);
    float q = Fma(-0x1.75d504p-8f, square, 0x1.5223dcp-6f);
    q = Fma(q, square, -0x1.b83bf2p-5f);
    q = Fma(q, square, 0x1.110724p-3f);
    q = Fma(q, square, -0x1.555532p-2f);
    return Fma(Mul(x, square), q, x);
  }
  const float e = Exp(Mul(magnitude, -2.0f));
  return CopySign(Div(Sub(1.0f, e), Add(1.0f, e)), x);
}

}  // namespace kvcache::arithmetic
