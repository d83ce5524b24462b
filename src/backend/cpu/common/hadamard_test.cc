// Checks the Hadamard transform of keys: its definition, its inverse, and its order of operations on
// every target.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/common/hadamard_test.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/common/hadamard-inl.h"
#include "backend/cpu/simd/highway-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

void Transform(float* row, std::int64_t dim) {
  HadamardTransform(row, dim);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backend/cpu/testing.h"
#include "gtest/gtest.h"

namespace kvcache::cpu {
HWY_EXPORT(Transform);

namespace {

std::vector<float> Transformed(std::vector<float> row) {
  HWY_DYNAMIC_DISPATCH(Transform)(row.data(), static_cast<std::int64_t>(row.size()));
  return row;
}

// Applies the header's order of operations, one value at a time.
std::vector<float> TransformedInOrder(std::vector<float> row) {
  const auto dim = static_cast<std::int64_t>(row.size());
  const std::int64_t size = HadamardSize(dim);
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  for (float* part = row.data(); part < row.data() + dim; part += size) {
    for (std::int64_t half = 1; half < size; half *= 2) {
      for (std::int64_t i = 0; i < size; ++i) {
        if ((i & half) != 0) continue;
        const float a = part[i];
        const float b = part[i + half];
        part[i] = a + b;
        part[i + half] = a - b;
      }
    }
    for (std::int64_t i = 0; i < size; ++i) part[i] *= factor;
  }
  return row;
}

std::vector<float> TimesTheMatrix(const std::vector<float>& row) {
  const std::int64_t size = HadamardSize(static_cast<std::int64_t>(row.size()));
  std::vector<float> product(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t part = i / static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
    double sum = 0.0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(size); ++j) {
      const bool negative = std::popcount((i - part) & j) % 2 != 0;
      sum += static_cast<double>(negative ? -row[part + j] : row[part + j]);
    }
    product[i] = static_cast<float>(sum / std::sqrt(static_cast<double>(size)));
  }
  return product;
}

constexpr std::int64_t kDims[] = {32, 64, 96, 128, 160, 256, 512, 576};

TEST(Hadamard, SizeIsThePowerOfTwoThatDivides) {
  EXPECT_EQ(HadamardSize(32), 32);
  EXPECT_EQ(HadamardSize(96), 32);
  EXPECT_EQ(HadamardSize(128), 128);
  EXPECT_EQ(HadamardSize(192), 64);
  EXPECT_EQ(HadamardSize(576), 64);
}

TEST(Hadamard, IsTheMatrix) {
  for (const std::int64_t dim : kDims) {
    const std::vector<float> row = testing::RandomValues(dim, 3);
    const std::vector<float> transformed = Transformed(row);
    const std::vector<float> expected = TimesTheMatrix(row);
    // A pairwise sum of up to 512 values below 1.7, divided by √512, has nine roundings.
    for (std::size_t i = 0; i < row.size(); ++i)
      ASSERT_NEAR(transformed[i], expected[i], 5e-6) << dim;
  }
}

TEST(Hadamard, TransformingTwiceGivesTheRowBack) {
  for (const std::int64_t dim : kDims) {
    const std::vector<float> row = testing::RandomValues(dim, 4);
    const std::vector<float> twice = Transformed(Transformed(row));
    for (std::size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(twice[i], row[i], 5e-6) << dim;
  }
}

TEST(Hadamard, SameBitsOnEveryTarget) {
  for (const std::string& target : CpuTargetNames()) {
    const testing::ForcedTarget forced(target);
    ASSERT_TRUE(forced.ok()) << target;
    for (const std::int64_t dim : kDims) {
      const std::vector<float> row = testing::RandomValues(dim, 5);
      EXPECT_EQ(Transformed(row), TransformedInOrder(row)) << target << " " << dim;
    }
  }
}

}  // namespace
}  // namespace kvcache::cpu
#endif  // HWY_ONCE
