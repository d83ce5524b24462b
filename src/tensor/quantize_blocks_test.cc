// Block types: bytes worked out by hand, and the quantisers' guarantees. tests/oracle/blocks
// compares all bit patterns with numpy.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tensor/float_conversion.h"
#include "tensor/quantize.h"

namespace kvcache::quantize_blocks_test {
namespace {

constexpr DType kBlockTypes[] = {DType::kQ4_0,  DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                 DType::kQ8_0,  DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                 DType::kMXFP4, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL,
                                 DType::kIQ4_XS};

std::size_t BlockSize(DType type) {
  return static_cast<std::size_t>(InfoOf(type).block_size);
}

// A block of zero bytes, to be filled in.
class Block {
 public:
  explicit Block(DType type)
      : type_(type), bytes_(static_cast<std::size_t>(InfoOf(type).block_bytes)) {}
  Block& Half(std::size_t at, float value) {
    const std::uint16_t bits = F32ToF16(value);
    std::memcpy(&bytes_[at], &bits, 2);
    return *this;
  }
  Block& Byte(std::size_t at, unsigned value) {
    bytes_[at] = static_cast<std::byte>(value);
    return *this;
  }
  std::vector<float> Values() const {
    std::vector<float> values(BlockSize(type_));
    EXPECT_TRUE(Dequantize(type_, bytes_, values).ok());
    return values;
  }

 private:
  DType type_;
  std::vector<std::byte> bytes_;
};

// Nibble i counts up in the lower halves and down in the upper ones.
void FillNibbles(std::size_t at, Block& block) {
  for (unsigned i = 0; i < 16; ++i) block.Byte(at + i, i | (15 - i) << 4);
}

TEST(BlockTypes, Q4_0ByHand) {
  Block block(DType::kQ4_0);
  FillNibbles(2, block.Half(0, 0.5f));
  const auto values = block.Values();
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5f * static_cast<float>(i - 8));
    EXPECT_EQ(values[i + 16], 0.5f * static_cast<float>(7 - i));
  }
}

TEST(BlockTypes, Q4_1ByHand) {
  Block block(DType::kQ4_1);
  FillNibbles(4, block.Half(0, 0.5f).Half(2, -3.0f));
  const auto values = block.Values();
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5f * static_cast<float>(i) - 3.0f);
    EXPECT_EQ(values[i + 16], 0.5f * static_cast<float>(15 - i) - 3.0f);
  }
}

// Bits 3 and 30 of the fifth bits: values 3 and 30.
TEST(BlockTypes, Q5_0ByHand) {
  Block block(DType::kQ5_0);
  FillNibbles(6, block.Half(0, 2.0f).Byte(2, 0x08).Byte(5, 0x40));
  const auto values = block.Values();
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 2.0f * static_cast<float>(i - (i == 3 ? 0 : 16)));
    EXPECT_EQ(values[i + 16], 2.0f * static_cast<float>(15 - i - (i == 14 ? 0 : 16)));
  }
}

TEST(BlockTypes, Q5_1ByHand) {
  Block block(DType::kQ5_1);
  FillNibbles(8, block.Half(0, 2.0f).Half(2, 100.0f).Byte(4, 0x08).Byte(7, 0x40));
  const auto values = block.Values();
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 2.0f * static_cast<float>(i + (i == 3 ? 16 : 0)) + 100.0f);
    EXPECT_EQ(values[i + 16], 2.0f * static_cast<float>(15 - i + (i == 14 ? 16 : 0)) + 100.0f);
  }
}

// Nibbles count up in the lower halves and down in the upper ones.
TEST(BlockTypes, Mxfp4ByHand) {
  constexpr float kValues[] = {0.0f, 0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  for (const int exponent : {-3, 0, 5}) {
    Block block(DType::kMXFP4);
    FillNibbles(1, block.Byte(0, static_cast<unsigned>(127 + exponent)));
    const auto values = block.Values();
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(values[i], std::ldexp(kValues[i], exponent));
      EXPECT_EQ(values[i + 16], std::ldexp(kValues[15 - i], exponent));
    }
  }
  // The smallest powers, and the one that the specification gives no value.
  EXPECT_EQ(Block(DType::kMXFP4).Byte(1, 1).Values()[0], 0x1p-128f);
  EXPECT_EQ(Block(DType::kMXFP4).Byte(0, 1).Byte(1, 7).Values()[0], 0x6p-126f);
  EXPECT_EQ(Block(DType::kMXFP4).Byte(0, 255).Byte(1, 1).Values()[0], 0x1p127f);
}

// sc_0 = 1, m_0 = 2; sc_4 = 33 and m_4 = 17, whose upper two bits are bytes 0's and 4's.
void FillScales(Block& block) {
  block.Half(0, 1.0f).Half(2, 0.5f);
  block.Byte(4 + 0, 1 | 2 << 6).Byte(4 + 4, 2 | 1 << 6).Byte(4 + 8, 1 | 1 << 4);
}

TEST(BlockTypes, Q4_KByHand) {
  Block block(DType::kQ4_K);
  FillScales(block);
  block.Byte(16, 0x53).Byte(16 + 64 + 31, 0x0f);
  const auto values = block.Values();
  EXPECT_EQ(values[0], 1.0f * 3 - 0.5f * 2);
  EXPECT_EQ(values[1], -1.0f);
  EXPECT_EQ(values[32], 0.0f);  // sc_1 is 0
  EXPECT_EQ(values[4 * 32 + 31], 33.0f * 15 - 0.5f * 17);
  EXPECT_EQ(values[4 * 32], -8.5f);
}

TEST(BlockTypes, Q5_KByHand) {
  Block block(DType::kQ5_K);
  FillScales(block);
  block.Byte(16, 0x01).Byte(16 + 31, 0x10);  // fifth bits of value 0 and of 4 · 32 + 31
  block.Byte(48, 0x53).Byte(48 + 64 + 31, 0x0f);
  const auto values = block.Values();
  EXPECT_EQ(values[0], 1.0f * 19 - 0.5f * 2);
  EXPECT_EQ(values[4 * 32 + 31], 33.0f * 31 - 0.5f * 17);
  EXPECT_EQ(values[4 * 32], -8.5f);
}

TEST(BlockTypes, Q6_KByHand) {
  Block block(DType::kQ6_K);
  block.Half(208, 0.25f);
  block.Byte(192, 3).Byte(192 + 2, 1).Byte(192 + 4, 0x80).Byte(192 + 6, 2).Byte(192 + 15, 0xff);
  block.Byte(0, 0xa5).Byte(128, 0xe4);  // high bits 0, 1, 2, 3 of values 0, 32, 64, 96
  block.Byte(64 + 63, 0x70);            // value 255's nibble
  const auto values = block.Values();
  EXPECT_EQ(values[0], 0.25f * 3 * (5 - 32));
  EXPECT_EQ(values[32], 0.25f * 1 * (16 - 32));
  EXPECT_EQ(values[64], 0.25f * -128 * (10 + 32 - 32));
  EXPECT_EQ(values[96], 0.25f * 2 * (48 - 32));
  EXPECT_EQ(values[255], 0.25f * -1 * (7 - 32));
}

TEST(BlockTypes, TheFurthestValueIsAtTheEndOfTheRange) {
  std::vector<float> values(32, 0.0f);
  values[5] = -4.0f;
  values[6] = 3.0f;
  std::vector<std::byte> bytes(18);
  ASSERT_TRUE(Quantize(DType::kQ4_0, values, bytes).ok());
  std::vector<float> back(32);
  ASSERT_TRUE(Dequantize(DType::kQ4_0, bytes, back).ok());
  EXPECT_EQ(back, values);  // d = 0.5: -4 is -8 · 0.5
}

class BlockTypesTest : public ::testing::TestWithParam<DType> {
 protected:
  std::vector<float> BackAndForth(const std::vector<float>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    std::vector<std::byte> bytes(static_cast<std::size_t>(BytesOf(GetParam(), count)));
    const Status status = Quantize(GetParam(), values, bytes);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> back(values.size());
    EXPECT_TRUE(Dequantize(GetParam(), bytes, back).ok());
    return back;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, BlockTypesTest, ::testing::ValuesIn(kBlockTypes),
                         [](const auto& instance) {
                           return std::string(InfoOf(instance.param).name);
                         });

// Of normal values; two or three bits hold less than four.
double MaxError(DType type) {
  switch (type) {
    case DType::kQ2_K: return 0.3;
    case DType::kQ3_K: return 0.16;
    case DType::kMXFP4: return 0.13;
    default: return 0.12;
  }
}

// Encoding decoded values changes them little. (Not by nothing: the factors are computed again.)
TEST_P(BlockTypesTest, ErrorsAreSmallBesideTheValues) {
  std::mt19937 random(3);
  for (const float size : {1e-3f, 1.0f, 100.0f}) {
    std::normal_distribution<float> normal(0.3f * size, size);
    std::vector<float> values(BlockSize(GetParam()) * 20);
    for (float& value : values) value = normal(random);
    const auto back = BackAndForth(values);
    double error = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error += std::pow(static_cast<double>(back[i] - values[i]) / static_cast<double>(size), 2);
    }
    EXPECT_LT(std::sqrt(error / static_cast<double>(values.size())), MaxError(GetParam())) << size;
  }
}

TEST_P(BlockTypesTest, ConstantsStayCloseAndZerosStay) {
  const std::size_t count = BlockSize(GetParam());
  for (const float value : {0.0f, -0.0f, 1.0f, -1.0f, 1e-30f}) {
    for (const float back : BackAndForth(std::vector<float>(count, value))) {
      EXPECT_NEAR(back, value, 0.04f * std::fabs(value) + 1e-30f);
    }
  }
}

TEST_P(BlockTypesTest, RefusesWhatIsNotFinite) {
  const std::size_t count = BlockSize(GetParam());
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(BytesOf(GetParam(), static_cast<std::int64_t>(2 * count))));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> values(2 * count, 1.0f);
    values[count + 3] = bad;
    const Status status = Quantize(GetParam(), values, bytes);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("values " + std::to_string(count) + " to "), std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace kvcache::quantize_blocks_test
