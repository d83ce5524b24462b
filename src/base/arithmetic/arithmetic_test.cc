// Each function against the C library's in long double, for numbers of every size and the special ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/arithmetic/activations.h"
#include "base/arithmetic/angles.h"
#include "base/arithmetic/doubles.h"
#include "base/arithmetic/exponentials.h"

namespace kvcache::arithmetic {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The distance between neighbours at `exact`, in the normal numbers of T.
template <class T>
long double Ulp(long double exact) {
  const long double smallest = std::numeric_limits<T>::min();
  const int exponent = std::ilogb(std::max(std::fabs(exact), smallest));
  return std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits + 1);
}

// The largest error of `f` in ulp over every step-th float in [from, to], of one sign.
template <class F, class Exact>
double WorstError(float from, float to, std::uint32_t step, const F& f, const Exact& exact) {
  long double worst = 0.0L;
  const std::uint32_t first = std::min(BitsOf(from), BitsOf(to));
  const std::uint32_t last = std::max(BitsOf(from), BitsOf(to));
  for (std::uint32_t bits = first; bits <= last - step; bits += step) {
    const float x = FloatOf(bits);
    const long double wanted = exact(static_cast<long double>(x));
    const long double error =
        std::fabs(static_cast<long double>(f(x)) - wanted) / Ulp<float>(wanted);
    worst = std::max(worst, std::isnan(error) ? 1e9L : error);
  }
  return static_cast<double>(worst);
}

constexpr std::uint32_t kStep = 509;  // a prime, so that all ends of bits occur

TEST(Arithmetic, ExpIsCloseForEveryArgument) {
  const auto f = [](float x) { return Exp(x); };
  const auto exact = [](long double x) { return std::exp(x); };
  EXPECT_LT(WorstError(0.0f, 88.0f, kStep, f, exact), 1.0);
  EXPECT_LT(WorstError(-0.0f, -87.0f, kStep, f, exact), 1.0);
}

TEST(Arithmetic, ExpOfSpecialArguments) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(std::numeric_limits<float>::denorm_min()), 1.0f);
  EXPECT_EQ(BitsOf(Exp(std::nextafter(-87.0f, -kInfinity))), 0U);
  EXPECT_EQ(BitsOf(Exp(-1e30f)), 0U);
  EXPECT_EQ(BitsOf(Exp(-kInfinity)), 0U);
  EXPECT_TRUE(std::isnan(Exp(kNan)));
  EXPECT_EQ(BoundedExp(kInfinity), Exp(88.0f));
  EXPECT_TRUE(std::isfinite(Exp(88.0f)));
  EXPECT_TRUE(std::isnan(BoundedExp(kNan)));
}

TEST(Arithmetic, Expm1IsCloseForEveryArgument) {
  const auto f = [](float x) { return Expm1(x); };
  const auto exact = [](long double x) { return std::expm1(x); };
  EXPECT_LT(WorstError(0.0f, 88.0f, kStep, f, exact), 1.5);
  EXPECT_LT(WorstError(-0.0f, -kInfinity, kStep, f, exact), 1.5);
  EXPECT_EQ(Expm1(-0.0f), 0.0f);
  EXPECT_EQ(Expm1(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(Expm1(kNan)));
}

TEST(Arithmetic, Log1pIsCloseFromZeroToOne) {
  const auto f = [](float x) { return Log1p(x); };
  const auto exact = [](long double x) { return std::log1p(x); };
  EXPECT_LT(WorstError(0.0f, 1.0f, kStep, f, exact), 1.5);
  EXPECT_EQ(BitsOf(Log1p(0.0f)), 0U);
  EXPECT_EQ(Log1p(1.0f), static_cast<float>(std::log(2.0L)));
  EXPECT_TRUE(std::isnan(Log1p(kNan)));
}

TEST(Arithmetic, TanhIsCloseForEveryArgument) {
  const auto f = [](float x) { return Tanh(x); };
  const auto exact = [](long double x) { return std::tanh(x); };
  EXPECT_LT(WorstError(0.0f, kInfinity, kStep, f, exact), 2.0);
  EXPECT_LT(WorstError(-0.0f, -kInfinity, kStep, f, exact), 2.0);
  EXPECT_EQ(Tanh(kInfinity), 1.0f);
  EXPECT_EQ(Tanh(-kInfinity), -1.0f);
  EXPECT_EQ(Tanh(-0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(Tanh(kNan)));
}

TEST(Arithmetic, ActivationsAreClose) {
  const auto sigmoid = [](long double x) { return 1.0L / (1.0L + std::exp(-x)); };
  EXPECT_LT(WorstError(-0.0f, -80.0f, 8 * kStep, Sigmoid, sigmoid), 3.0);
  EXPECT_LT(WorstError(0.0f, kInfinity, 8 * kStep, Sigmoid, sigmoid), 3.0);
  const auto silu = [&](long double x) { return x * sigmoid(x); };
  EXPECT_LT(WorstError(-0.0f, -80.0f, 8 * kStep, Silu, silu), 3.0);
  EXPECT_LT(WorstError(0.0f, 1e30f, 8 * kStep, Silu, silu), 3.0);
  const auto softplus = [](long double x) {
    return std::max(x, 0.0L) + std::log1p(std::exp(-std::fabs(x)));
  };
  EXPECT_LT(WorstError(-0.0f, -86.0f, 8 * kStep, SoftPlus, softplus), 2.0);
  EXPECT_LT(WorstError(0.0f, 1e30f, 8 * kStep, SoftPlus, softplus), 2.0);
  const auto gelu = [](long double x) {
    const long double u = std::sqrt(2.0L / 3.14159265358979323846L) * (x + 0.044715L * x * x * x);
    return x / (1.0L + std::exp(-2.0L * u));
  };
  EXPECT_LT(WorstError(0.0f, 1e10f, 8 * kStep, Gelu, gelu), 3.0);
  EXPECT_LT(WorstError(-0.0f, -3.0f, 8 * kStep, Gelu, gelu),
            16.0);  // exp(-2u) amplifies u's rounding
}

TEST(Arithmetic, ActivationsKeepNans) {
  EXPECT_TRUE(std::isnan(Sigmoid(kNan)));
  EXPECT_TRUE(std::isnan(Silu(kNan)));
  EXPECT_TRUE(std::isnan(Gelu(kNan)));
  EXPECT_TRUE(std::isnan(Relu(kNan)));
  EXPECT_TRUE(std::isnan(ReluSquared(kNan)));
  EXPECT_TRUE(std::isnan(GateClamped(kNan, 1.0f, 1.7f, 7.0f)));
  EXPECT_TRUE(std::isnan(GateClamped(1.0f, kNan, 1.7f, 7.0f)));
  EXPECT_TRUE(std::isnan(SoftCap(kNan, 30.0f)));
  EXPECT_TRUE(std::isnan(Xielu(kNan, 0.8f, 0.8f, 0.5f, -1e-6f)));
  EXPECT_TRUE(std::isnan(SoftPlus(kNan)));
  EXPECT_TRUE(std::isnan(Decay(kNan, 1.0f)));
}

TEST(Arithmetic, SinesAndCosinesOfLargeAnglesAreClose) {
  // The C library's results are right in long double for any angle.
  long double worst = 0.0L;
  std::uint64_t state = 1;
  for (int i = 0; i < 2'000'000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const double share = static_cast<double>(state >> 11) * 0x1p-53;
    const double angle = std::ldexp(1.0 + share, static_cast<int>(state % 62) - 30);
    const double signed_angle = i % 2 == 0 ? angle : -angle;
    const SineCosine found = SinCos(signed_angle);
    const auto exact = static_cast<long double>(signed_angle);
    worst = std::max({worst, std::fabs(found.sine - std::sin(exact)) / Ulp<double>(found.sine),
                      std::fabs(found.cosine - std::cos(exact)) / Ulp<double>(found.cosine)});
  }
  EXPECT_LT(static_cast<double>(worst), 2.0);
}

TEST(Arithmetic, SinesOfSpecialAngles) {
  EXPECT_EQ(SinCos(0.0).sine, 0.0);
  EXPECT_EQ(SinCos(0.0).cosine, 1.0);
  EXPECT_EQ(SinCos(0x1p-1074).sine, 0x1p-1074);
  EXPECT_TRUE(std::isnan(SinCos(std::numeric_limits<double>::infinity()).sine));
  EXPECT_TRUE(std::isnan(SinCos(std::numeric_limits<double>::quiet_NaN()).cosine));
  // The double next to π/2: nearly all bits cancel.
  EXPECT_NEAR(SinCos(0x1.921fb54442d18p+0).cosine, 0x1.1a62633145c07p-54, 1e-32);
}

// The largest error in ulp of `f` over arguments from -bound to bound, or from 0 on.
template <class F, class Exact>
double WorstDoubleError(double low, double high, const F& f, const Exact& exact) {
  long double worst = 0.0L;
  constexpr int kSteps = 400'000;
  for (int i = 0; i <= kSteps; ++i) {
    const double x = low + (high - low) * i / kSteps;
    const long double wanted = exact(static_cast<long double>(x));
    const long double error =
        std::fabs(static_cast<long double>(f(x)) - wanted) / Ulp<double>(wanted);
    worst = std::max(worst, std::isnan(error) ? 1e9L : error);
  }
  return static_cast<double>(worst);
}

TEST(Arithmetic, DoublesAreClose) {
  const auto exp = [](double x) { return Exp(x); };
  EXPECT_LT(WorstDoubleError(-708.0, 709.0, exp, [](long double x) { return std::exp(x); }), 1.0);
  EXPECT_LT(WorstDoubleError(-1.0, 1.0, exp, [](long double x) { return std::exp(x); }), 1.0);
  const auto log = [](double x) { return Log(x); };
  EXPECT_LT(WorstDoubleError(0.4, 2.5, log, [](long double x) { return std::log(x); }), 1.0);
  EXPECT_LT(WorstDoubleError(1e-3, 1e6, log, [](long double x) { return std::log(x); }), 1.0);
  EXPECT_LT(WorstDoubleError(1e-300, 1e300, log, [](long double x) { return std::log(x); }), 1.0);
  const auto log1p = [](double x) { return Log1p(x); };
  EXPECT_LT(WorstDoubleError(-0.9, 9.0, log1p, [](long double x) { return std::log1p(x); }), 2.0);
  EXPECT_LT(WorstDoubleError(0.0, 1e-9, log1p, [](long double x) { return std::log1p(x); }), 2.0);
  const auto tanh = [](double x) { return Tanh(x); };
  EXPECT_LT(WorstDoubleError(-25.0, 25.0, tanh, [](long double x) { return std::tanh(x); }), 3.0);
  EXPECT_LT(WorstDoubleError(-1e-5, 1e-5, tanh, [](long double x) { return std::tanh(x); }), 3.0);
}

TEST(Arithmetic, PowersOfFrequencies) {
  for (const double base : {10'000.0, 500'000.0, 1e6, 2.0, 0.5}) {
    for (int i = 0; i <= 128; ++i) {
      const double exponent = -2.0 * i / 128;
      const long double exact = std::pow(static_cast<long double>(base), exponent);
      EXPECT_LT(std::fabs(Power(base, exponent) - exact), 32.0L * Ulp<double>(exact));
      EXPECT_EQ(static_cast<float>(Power(base, exponent)), static_cast<float>(exact));
    }
  }
  EXPECT_EQ(Power(7.0, 0.0), 1.0);
  for (int i = -20; i <= 20; ++i) {
    EXPECT_EQ(static_cast<float>(Power(2.0, i)), std::ldexp(1.0f, i));
  }
}

TEST(Arithmetic, SpecialDoubles) {
  constexpr double kLarge = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Exp(-kLarge), 0.0);
  EXPECT_EQ(Exp(kLarge), kLarge);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_EQ(Log(1.0), 0.0);
  EXPECT_EQ(Log(0.0), -kLarge);
  EXPECT_EQ(Log(kLarge), kLarge);
  EXPECT_TRUE(std::isnan(Log(-1.0)));
  EXPECT_TRUE(std::isnan(Log(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_EQ(Log1p(kLarge), kLarge);
  EXPECT_EQ(Tanh(kLarge), 1.0);
  EXPECT_EQ(Tanh(-kLarge), -1.0);
  EXPECT_EQ(Tanh(0.0), 0.0);
  EXPECT_TRUE(std::isnan(Tanh(std::numeric_limits<double>::quiet_NaN())));
}

}  // namespace
}  // namespace kvcache::arithmetic
