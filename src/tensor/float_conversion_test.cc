#include "tensor/float_conversion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace kvcache::float_conversion_test {
namespace {

// The value of f16 bits from the format's definition.
double F16Value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const double fraction = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(F16Test, EveryFiniteValueWidensExactlyAndComesBack) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = F16ToF32(bits);
    if ((bits & 0x7c00) == 0x7c00) continue;
    ASSERT_EQ(static_cast<double>(value), F16Value(bits)) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(F32ToF16(value), bits);
  }
}

TEST(F16Test, RoundsToNearestEvenBetweenNeighbors) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const float middle = static_cast<float>((F16Value(bits) + F16Value(next)) / 2);
    const std::uint16_t even = (bits & 1) == 0 ? bits : next;
    ASSERT_EQ(F32ToF16(middle), even) << bits;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 1e9f)), next);
    ASSERT_EQ(F32ToF16(-middle), even | 0x8000);
  }
}

TEST(F16Test, Specials) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(F16ToF32(0x7c00), kInf);
  EXPECT_EQ(F16ToF32(0xfc00), -kInf);
  EXPECT_TRUE(std::isnan(F16ToF32(0x7c01)));
  EXPECT_EQ(F32ToF16(kInf), 0x7c00);
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(-1e30f), 0xfc00);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0);
  EXPECT_EQ(F32ToF16(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(std::nanf("")))));
}

TEST(Bf16Test, EveryValueComesBackAndRoundsToNearestEven) {
  for (std::uint32_t i = 0; i < 0x7f80; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = Bf16ToF32(bits);
    ASSERT_EQ(F32ToBf16(value), bits);
    ASSERT_EQ(F32ToBf16(-value), bits | 0x8000);
    const float middle = std::bit_cast<float>((i << 16) | 0x8000u);
    ASSERT_EQ(F32ToBf16(middle), bits + (bits & 1));
    ASSERT_EQ(F32ToBf16(std::nextafter(middle, 0.0f)), bits);
  }
  EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace kvcache::float_conversion_test
