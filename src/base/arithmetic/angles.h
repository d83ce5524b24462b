// Sine and cosine of rotations, in f64 (docs/design/exactness.md). Results are meant to be rounded
// once to f32. src/backend/cpu/simd/angles-inl.h has the same sequence for vectors: change both.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "base/arithmetic/operations.h"

namespace kvcache::arithmetic {

struct SineCosine {
  double sine;
  double cosine;
};

// Within 2 ulp of the exact values for |angle| <= 2^32 radians. Beyond it, results have no meaning but
// the same bits everywhere, NaN for some; an infinity or NaN gives NaN.
KVCACHE_ARITHMETIC SineCosine SinCos(double angle) {
  // angle = n π/2 + r with |r| <= π/4: adding 1.5 · 2^52 rounds to an integer and leaves it in the
  // low bits. The first of the two subtractions is exact.
  constexpr double kMagic = 0x1.8p52;
  const double shifted = Fma(angle, 0x1.45f306dc9c883p-1, kMagic);
  const double n = Sub(shifted, kMagic);
  double r = Fma(n, -0x1.921fb54442d18p+0, angle);
  r = Fma(n, -0x1.1a62633145c07p-54, r);
  const double z = Mul(r, r);
  double s = Fma(-1.0 / 1307674368000.0, z, 1.0 / 6227020800.0);  // 1/15!, 1/13!
  s = Fma(s, z, -1.0 / 39916800.0);
  s = Fma(s, z, 1.0 / 362880.0);
  s = Fma(s, z, -1.0 / 5040.0);
  s = Fma(s, z, 1.0 / 120.0);
  s = Fma(s, z, -1.0 / 6.0);
  const double sine = Fma(Mul(r, z), s, r);
  double c = Fma(1.0 / 20922789888000.0, z, -1.0 / 87178291200.0);  // 1/16!, 1/14!
  c = Fma(c, z, 1.0 / 479001600.0);
  c = Fma(c, z, -1.0 / 3628800.0);
  c = Fma(c, z, 1.0 / 40320.0);
  c = Fma(c, z, -1.0 / 720.0);
  c = Fma(c, z, 1.0 / 24.0);
  c = Fma(c, z, -0.5);
  const double cosine = Fma(z, c, 1.0);
  const std::uint64_t quadrant = BitsOf(shifted);
  const double first = (quadrant & 1) != 0 ? cosine : sine;
  const double second = (quadrant & 1) != 0 ? sine : cosine;
  return {(quadrant & 2) != 0 ? -first : first, ((quadrant + 1) & 2) != 0 ? -second : second};
}

}  // namespace kvcache::arithmetic
