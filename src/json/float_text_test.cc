#include "json/float_text.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace kvcache {
namespace {

TEST(FloatTextTest, NumbersHaveTheFewestDigitsThatMeanThem) {
  EXPECT_EQ(NumberText(0.1f), "0.1");
  EXPECT_EQ(NumberText(-0.0f), "-0");
  EXPECT_EQ(NumberText(16777216.0f), "16777216");
  EXPECT_EQ(NumberText(std::numeric_limits<float>::infinity()), "null");
  EXPECT_EQ(NumberText(std::nanf("")), "null");
  for (const float value : {1.0f / 3.0f, 1e-42f, 3.4e38f, -5.5511151e-17f}) {
    EXPECT_EQ(std::strtof(NumberText(value).c_str(), nullptr), value);
  }
  EXPECT_EQ(VectorText(std::vector<float>{1.0f, 0.5f}), "[1,0.5]");
  EXPECT_EQ(VectorText({}), "[]");
}

// What Python's base64.b64encode(numpy.array(…, "<f4").tobytes()) says.
TEST(FloatTextTest, Base64) {
  EXPECT_EQ(Base64Text({}), "");
  EXPECT_EQ(Base64Text(std::array{1.0f}), "AACAPw==");
  EXPECT_EQ(Base64Text(std::array{1.0f, -2.0f}), "AACAPwAAAMA=");
  EXPECT_EQ(Base64Text(std::array{0.5f, 0.25f, 1e10f}), "AAAAPwAAgD75AhVQ");
}

}  // namespace
}  // namespace kvcache
