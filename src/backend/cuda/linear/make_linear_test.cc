// Checks what lies in the device's memory after MakeLinear, and what it and the products refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cuda/linear/linear_kernels.h"
#include "backend/cuda/linear/linear_testing.h"
#include "backend/cuda/linear/linear_weight.h"

namespace kvcache::cuda::make_linear_test {
namespace {

namespace block = cpu::block;
using cpu::testing::RandomWeights;
using linear_testing::Bench;
using linear_testing::Matrix;

std::vector<std::byte> BytesOfMatrix(Bench& bench, const LinearWeight& weight, std::int64_t matrix,
                                     std::int64_t bytes) {
  const auto& own = static_cast<const linear::CudaWeight&>(weight);
  std::vector<std::byte> copy(static_cast<std::size_t>(bytes));
  EXPECT_TRUE(bench.device().CopyOut(own.matrix(matrix), copy).ok());
  return copy;
}

// More bytes than are packed at once, and a last panel with few rows.
TEST(CudaMakeLinear, PacksAllPanelsOfAStack) {
  Bench bench(1);
  constexpr std::int64_t kInputs = 2048;
  constexpr std::int64_t kOutputs = 2100;
  const auto stack = RandomWeights(DType::kQ8_0, kInputs * kOutputs * 2, 3);
  const auto weight = MakeLinear(
      bench.device(), TensorView::Dense(stack.data(), DType::kQ8_0, kInputs, kOutputs, 2));
  ASSERT_TRUE(weight.ok()) << weight.status().message();
  const std::int64_t panels = block::Panels(kOutputs);
  const std::int64_t panel_bytes = block::PanelBytes(DType::kQ8_0, kInputs);
  const std::int64_t row_bytes = BytesOf(DType::kQ8_0, kInputs);
  EXPECT_EQ((*weight)->owned_bytes(), static_cast<std::size_t>(2 * panels * panel_bytes));
  std::vector<std::byte> expected(static_cast<std::size_t>(panels * panel_bytes));
  for (std::int64_t matrix = 0; matrix < 2; ++matrix) {
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const std::int64_t row = panel * block::kPanelRows;
      block::PackPanel(DType::kQ8_0, stack.data() + (matrix * kOutputs + row) * row_bytes,
                       std::min(block::kPanelRows, kOutputs - row), kInputs,
                       expected.data() + panel * panel_bytes);
    }
    EXPECT_EQ(BytesOfMatrix(bench, **weight, matrix, panels * panel_bytes), expected);
  }
}

TEST(CudaMakeLinear, PadsRowsOfFloatsWithZeros) {
  Bench bench(1);
  constexpr std::int64_t kInputs = 1001;
  constexpr std::int64_t kOutputs = 2200;
  const auto rows = RandomWeights(DType::kF32, kInputs * kOutputs, 3);
  const auto weight =
      MakeLinear(bench.device(), TensorView::Dense(rows.data(), DType::kF32, kInputs, kOutputs));
  ASSERT_TRUE(weight.ok()) << weight.status().message();
  constexpr std::int64_t kStride = 4 * linear::RowStride(kInputs);
  std::vector<std::byte> expected(kStride * kOutputs);
  for (std::int64_t row = 0; row < kOutputs; ++row) {
    std::copy_n(rows.begin() + row * kInputs * 4, kInputs * 4, expected.begin() + row * kStride);
  }
  EXPECT_EQ(BytesOfMatrix(bench, **weight, 0, kStride * kOutputs), expected);
}

TEST(CudaMakeLinear, RefusesWhatTheCpuRefuses) {
  Bench bench(1);
  std::vector<std::byte> memory(1 << 12);
  const TensorView integers = TensorView::Dense(memory.data(), DType::kI8, 32, 4);
  const TensorView half_a_block = TensorView::Dense(memory.data(), DType::kQ8_0, 48, 4);
  for (const TensorView& w : {integers, half_a_block}) {
    const Status status = MakeLinear(bench.device(), w).status();
    const Status on_cpu = bench.cpu().MakeLinear(w).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), on_cpu.code());
    EXPECT_EQ(status.message(), on_cpu.message());
  }
}

// ---- Calls

class CudaLinearCall : public ::testing::Test {
 protected:
  CudaLinearCall() {
    const auto rows = RandomWeights(DType::kQ8_0, 64 * 24, 3);
    weight_ =
        std::move(MakeLinear(bench_.device(), TensorView::Dense(rows.data(), DType::kQ8_0, 64, 24)))
            .value();
    memory_ = bench_.Upload(std::vector<float>(64 * 64));
  }
  Status Multiply(const TensorView& x, const TensorView& y, const LinearWeight* weight) {
    const LinearOutput output{weight, y};
    const LinearGroup group{x, {&output, 1}};
    return LinearGroups(bench_.device(), bench_.memory(), {&group, 1});
  }

  Bench bench_{1};
  std::unique_ptr<LinearWeight> weight_;
  float* memory_;
};

TEST_F(CudaLinearCall, NamesBothSidesOfAMismatch) {
  const Status status = Multiply(Matrix(memory_, 63, 2), Matrix(memory_, 24, 2), weight_.get());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "linear: inputs of weight and x differ: weight [64, 24], x [63, 2], y [24, 2]");
}

TEST_F(CudaLinearCall, RefusesInputsThatAreNotAligned) {
  const Status status = Multiply(Matrix(memory_ + 1, 64, 2), Matrix(memory_, 24, 2), weight_.get());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "linear: x [64, 2] for block-quantised weights is not 16-byte aligned");
}

TEST_F(CudaLinearCall, RefusesWeightsOfAnotherBackend) {
  const auto rows = RandomWeights(DType::kQ8_0, 64 * 24, 3);
  const auto other = bench_.cpu().MakeLinear(TensorView::Dense(rows.data(), DType::kQ8_0, 64, 24));
  for (const LinearWeight* const weight : {other->get(), static_cast<LinearWeight*>(nullptr)}) {
    const Status status = Multiply(Matrix(memory_, 64, 2), Matrix(memory_, 24, 2), weight);
    EXPECT_EQ(status.message(), "linear: a weight was not made by this backend's MakeLinear");
  }
}

TEST_F(CudaLinearCall, RefusesTokensThatTheTableLacks) {
  const std::vector<std::int32_t> tokens = {1, 4};
  const Status status = Embed(bench_.device(), bench_.memory(), Matrix(memory_, 16, 4), tokens,
                              Matrix(memory_ + 64, 16, 2));
  EXPECT_FALSE(status.ok());
}

// A product without columns, and a call without groups, are no work.
TEST_F(CudaLinearCall, DoesNothingForNoColumns) {
  EXPECT_TRUE(Multiply(Matrix(memory_, 64, 0), Matrix(memory_, 24, 0), weight_.get()).ok());
  EXPECT_TRUE(LinearGroups(bench_.device(), bench_.memory(), {}).ok());
}

}  // namespace
}  // namespace kvcache::cuda::make_linear_test
