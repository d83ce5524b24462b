#include "backend/cpu/linear/refused_scales.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "backend/cpu/testing.h"

namespace kvcache::cpu::refused_scales_test {
namespace {

// The first row with such a scale is named, whatever the number of threads.
TEST(RefusedScales, TheFirstRowIsNamed) {
  constexpr std::int64_t kInputs = 96;
  constexpr std::int64_t kOutputs = 40;
  for (const int threads : {1, 3}) {
    const auto backend = std::move(MakeCpuBackend({.threads = threads})).value();
    for (const DType dtype : {DType::kQ8_0, DType::kQ4_1, DType::kIQ4_NL, DType::kMXFP4}) {
      auto weights = testing::RandomWeights(dtype, kInputs * kOutputs * 2, 5);
      const TensorView stack =
          TensorView::Dense(weights.data(), dtype, kInputs, kOutputs, std::int64_t{2});
      EXPECT_TRUE(backend->MakeLinear(stack).ok());
      for (const std::int64_t row : {79, 60, 57}) {
        std::byte* const block =
            weights.data() + BytesOf(dtype, row * kInputs) + 2 * InfoOf(dtype).block_bytes;
        const bool halves = dtype != DType::kMXFP4;
        block[0] = static_cast<std::byte>(halves ? 0 : 250);
        if (halves) block[1] = std::byte{0x7c};
        const Status status = backend->MakeLinear(stack).status();
        EXPECT_EQ(status.code(), StatusCode::kCorrupt);
        EXPECT_EQ(status.message(),
                  "linear: matrix 1, row " + std::to_string(row - kOutputs) + ": block 2 of " +
                      std::string(InfoOf(dtype).name) + ": the scale is " +
                      (halves ? "infinity; must be finite" : "2^123; must be at most 2^103"));
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::cpu::refused_scales_test
