// exp, log, pow and tanh in f64, for values that a model's load computes once: frequencies, slopes,
// scales. Each is one fixed sequence of operations (docs/design/exactness.md); it differs from the
// exact value by less than 3 ulp, Power by less than 3 + |exponent · ln(base)| ulp. A NaN gives a NaN.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "base/arithmetic/operations.h"

namespace kvcache::arithmetic {

// x = n ln 2 + r with |r| <= ln(2)/2; the power is 2^n. REQUIRES: -708 <= x <= 709.
struct ReducedDouble {
  double r;
  double power;
};

KVCACHE_ARITHMETIC ReducedDouble ReduceExponent(double x) {
  constexpr double kMagic = 0x1.8p52;
  const double shifted = Fma(x, 0x1.71547652b82fep+0, kMagic);
  const double n = Sub(shifted, kMagic);
  double r = Fma(n, -0x1.62e42fefa39efp-1, x);
  r = Fma(n, -0x1.abc9e3b39803fp-56, r);
  return {r, DoubleOf((BitsOf(shifted) << 52) + (std::uint64_t{1023} << 52))};
}

// P with exp(r) = 1 + r + r² P(r): the series up to r^14.
KVCACHE_ARITHMETIC double ExpPolynomial(double r) {
  double p = Fma(1.0 / 87178291200.0, r, 1.0 / 6227020800.0);  // 1/14!, 1/13!
  p = Fma(p, r, 1.0 / 479001600.0);
  p = Fma(p, r, 1.0 / 39916800.0);
  p = Fma(p, r, 1.0 / 3628800.0);
  p = Fma(p, r, 1.0 / 362880.0);
  p = Fma(p, r, 1.0 / 40320.0);
  p = Fma(p, r, 1.0 / 5040.0);
  p = Fma(p, r, 1.0 / 720.0);
  p = Fma(p, r, 1.0 / 120.0);
  p = Fma(p, r, 1.0 / 24.0);
  p = Fma(p, r, 1.0 / 6.0);
  return Fma(p, r, 0.5);
}

// exp(x): 0 below -708, infinite above 709.
KVCACHE_ARITHMETIC double Exp(double x) {
  if (x < -708.0) return 0.0;
  if (x > 709.0) return DoubleOf(0x7ff0000000000000U);
  const ReducedDouble reduced = ReduceExponent(x);
  const double p = ExpPolynomial(reduced.r);
  return Mul(Fma(Fma(p, reduced.r, 1.0), reduced.r, 1.0), reduced.power);
}

// ln(x): -infinity at 0, NaN below. Values below the normal ones count as 0.
KVCACHE_ARITHMETIC double Log(double x) {
  const double kInfinity = DoubleOf(0x7ff0000000000000U);
  if (!(x > 0.0)) return x == 0.0 ? -kInfinity : DoubleOf(0x7ff8000000000000U);
  if (x < 0x1p-1022) return -kInfinity;
  if (x == kInfinity) return x;
  // x = 2^k m with m from sqrt(1/2) to sqrt(2): 0x3fe6a09e667f3bcd has the bits of sqrt(1/2).
  constexpr std::uint64_t kRootHalf = 0x3fe6a09e667f3bcdU;
  const std::uint64_t above = BitsOf(x) - kRootHalf;
  const std::int64_t exponent = static_cast<std::int64_t>(above) >> 52;
  const double m = DoubleOf(BitsOf(x) - (static_cast<std::uint64_t>(exponent) << 52));
  const auto k = static_cast<double>(exponent);
  // ln(1 + f) = f - (f²/2 - s (f²/2 + R(s²))) with s = f / (2 + f).
  const double f = Sub(m, 1.0);
  const double s = Div(f, Add(2.0, f));
  const double z = Mul(s, s);
  double q = Fma(2.0 / 23.0, z, 2.0 / 21.0);
  q = Fma(q, z, 2.0 / 19.0);
  q = Fma(q, z, 2.0 / 17.0);
  q = Fma(q, z, 2.0 / 15.0);
  q = Fma(q, z, 2.0 / 13.0);
  q = Fma(q, z, 2.0 / 11.0);
  q = Fma(q, z, 2.0 / 9.0);
  q = Fma(q, z, 2.0 / 7.0);
  q = Fma(q, z, 2.0 / 5.0);
  q = Fma(q, z, 2.0 / 3.0);
  const double half = Mul(Mul(0.5, f), f);
  const double inner = Fma(q, z, half);
  const double low = Fma(k, 0x1.abc9e3b39803fp-56, Mul(s, inner));
  return Fma(k, 0x1.62e42fefa39efp-1, Sub(f, Sub(half, low)));
}

// base to the power of exponent, as exp(exponent · ln(base)). REQUIRES: base > 0.
KVCACHE_ARITHMETIC double Power(double base, double exponent) {
  return Exp(Mul(exponent, Log(base)));
}

// ln(1 + x). REQUIRES: x > -1, or NaN.
KVCACHE_ARITHMETIC double Log1p(double x) {
  const double u = Add(1.0, x);
  if (u == DoubleOf(0x7ff0000000000000U)) return u;
  return Add(Log(u), Div(Sub(x, Sub(u, 1.0)), u));
}

KVCACHE_ARITHMETIC double Tanh(double x) {
  const double magnitude = x < 0.0 ? -x : x;
  if (magnitude > 20.0) return x < 0.0 ? -1.0 : 1.0;
  const ReducedDouble reduced = ReduceExponent(Mul(2.0, magnitude));
  const double r = reduced.r;
  const double part = Fma(Mul(r, r), ExpPolynomial(r), r);
  const double e = Fma(part, reduced.power, Sub(reduced.power, 1.0));  // exp(2|x|) - 1
  const double result = Div(e, Add(e, 2.0));
  return x < 0.0 ? -result : result;
}

}  // namespace kvcache::arithmetic
