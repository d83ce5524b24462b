#include "tensor/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/float_conversion.h"

namespace kvcache::quantize_test {
namespace {

std::vector<std::byte> Quantized(DType type, const std::vector<float>& values) {
  std::vector<std::byte> out(
      static_cast<std::size_t>(BytesOf(type, static_cast<std::int64_t>(values.size()))));
  const Status status = Quantize(type, values, out);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

std::vector<float> Dequantized(DType type, const std::vector<std::byte>& bytes, std::size_t count) {
  std::vector<float> out(count);
  const Status status = Dequantize(type, bytes, out);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

int Quant(const std::vector<std::byte>& bytes, std::size_t i) {
  return static_cast<std::int8_t>(bytes[i / 32 * 34 + 2 + i % 32]);
}

std::uint16_t Scale(const std::vector<std::byte>& bytes, std::size_t block) {
  std::uint16_t bits;
  std::memcpy(&bits, &bytes[block * 34], sizeof(bits));
  return bits;
}

TEST(Quantize, Q8RoundsHalvesAwayFromZero) {
  std::vector<float> values(32, 0.0f);
  // With a largest value of 127, d is 1 and the values are the quants before rounding.
  values[0] = 127.0f;
  const struct {
    float value;
    int quant;
  } kCases[] = {{0.5f, 1},       {-0.5f, -1},      {1.5f, 2},         {2.5f, 3},
                {-2.5f, -3},     {0.49999997f, 0}, {-0.49999997f, 0}, {126.5f, 127},
                {-127.0f, -127}, {126.49999f, 126}};
  for (std::size_t i = 0; i < std::size(kCases); ++i) values[i + 1] = kCases[i].value;
  const auto bytes = Quantized(DType::kQ8_0, values);
  EXPECT_EQ(Scale(bytes, 0), F32ToF16(1.0f));
  EXPECT_EQ(Quant(bytes, 0), 127);
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    EXPECT_EQ(Quant(bytes, i + 1), kCases[i].quant) << kCases[i].value;
  }
}

// The definition, value by value, with the library's own rounding.
TEST(Quantize, Q8IsTheDefinition) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::normal_distribution<float> normal(0.0f, std::exp2(static_cast<float>(round % 40 - 25)));
    std::vector<float> values(96);
    for (float& value : values) value = normal(random);
    const auto bytes = Quantized(DType::kQ8_0, values);
    for (std::size_t block = 0; block < 3; ++block) {
      float largest = 0.0f;
      for (std::size_t i = 0; i < 32; ++i) {
        largest = std::max(largest, std::fabs(values[block * 32 + i]));
      }
      const float d = largest / 127.0f;
      ASSERT_EQ(Scale(bytes, block), F32ToF16(d));
      for (std::size_t i = block * 32; i < block * 32 + 32; ++i) {
        ASSERT_EQ(Quant(bytes, i), static_cast<int>(std::round(values[i] * (1.0f / d))));
      }
    }
  }
}

// Bytes that ggml's reference gave for these values.
TEST(Quantize, Q8HasTheBytesOfGgml) {
  std::vector<float> values(32);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>((i * 37) % 64 - 31) * 0.173f;
  const int kQuants[] = {-123, 24,  -83, 64,  -44,  103, -4,  -111, 36,  -71, 75,
                         -32,  115, 8,   -99, 48,   -60, 87,  -20,  127, 20,  -87,
                         60,   -48, 99,  -8,  -115, 32,  -75, 71,   -36, 111};
  const auto bytes = Quantized(DType::kQ8_0, values);
  EXPECT_EQ(Scale(bytes, 0), 0x2994);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(Quant(bytes, i), kQuants[i]) << i;
}

TEST(Quantize, ZerosHaveScaleZero) {
  const auto bytes = Quantized(DType::kQ8_0, std::vector<float>(64, -0.0f));
  EXPECT_EQ(bytes, std::vector<std::byte>(68));
}

TEST(Quantize, Q8TakesTheSmallestAndRefusesWhatIsNotFinite) {
  std::vector<float> values(64, 1e-38f);
  EXPECT_EQ(Quantized(DType::kQ8_0, values), std::vector<std::byte>(68));
  std::vector<std::byte> bytes(68);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    values[40] = bad;
    EXPECT_EQ(Quantize(DType::kQ8_0, values, bytes).message(),
              "values 32 to 63: q8_0 cannot hold one that is not finite");
  }
}

TEST(Quantize, SixteenBitTypesRoundEachValue) {
  const std::vector<float> values = {0.0f, -1.0f, 0.1f, 65504.0f, 1e-8f, 3.14159274f};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto bytes = Quantized(type, values);
    const auto back = Dequantized(type, bytes, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = type == DType::kF32   ? values[i]
                             : type == DType::kF16 ? F16ToF32(F32ToF16(values[i]))
                                                   : Bf16ToF32(F32ToBf16(values[i]));
      EXPECT_EQ(back[i], expected) << InfoOf(type).name << " " << values[i];
    }
  }
}

TEST(Quantize, DequantizedQ8IsScaleTimesQuant) {
  const std::vector<float> values = {2.0f, -3.0f, 0.25f};
  std::vector<float> padded(32);
  std::copy(values.begin(), values.end(), padded.begin());
  const auto bytes = Quantized(DType::kQ8_0, padded);
  const auto back = Dequantized(DType::kQ8_0, bytes, 32);
  const float d = F16ToF32(Scale(bytes, 0));
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(back[i], d * static_cast<float>(Quant(bytes, i)));
}

TEST(Quantize, RefusesSizesAndTypesThatDoNotFit) {
  std::vector<float> values(33);
  std::vector<std::byte> bytes(34);
  const Status half = Quantize(DType::kQ8_0, values, bytes);
  EXPECT_EQ(half.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(half.message(), "33 values of type q8_0 (blocks of 32 in 34 bytes) are not 34 bytes");
  EXPECT_EQ(Dequantize(DType::kF16, bytes, values).code(), StatusCode::kInvalidArgument);
  bytes.resize(33);
  EXPECT_EQ(Quantize(DType::kI8, values, bytes).code(), StatusCode::kUnsupported);
  EXPECT_EQ(Dequantize(DType::kI8, bytes, values).code(), StatusCode::kUnsupported);
  values.assign(256, 1.0f);
  bytes.resize(66);
  EXPECT_EQ(Quantize(DType::kIQ2_XXS, values, bytes).message(),
            "type iq2_xxs can be read but not written");
  EXPECT_FALSE(CanQuantize(DType::kIQ2_XXS));
  EXPECT_TRUE(CanQuantize(DType::kIQ4_XS));
}

}  // namespace
}  // namespace kvcache::quantize_test
