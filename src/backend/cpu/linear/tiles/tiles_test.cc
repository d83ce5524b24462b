// Which calls the matrix tiles multiply, and the sizes of tiles that linear_test.cc leaves out.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_tiles.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/linear/tiles/tile_tokens.h"
#include "backend/cpu/testing.h"
#include "support/internal/tile_emulator.h"

namespace kvcache::cpu::tiles_test {
namespace {

using kvcache::testing::EmulatedTileInstructions;
using kvcache::testing::EmulateTiles;
using testing::ForcedTarget;
using testing::RandomValues;
using testing::RandomWeights;

// A matrix of random weights and the inputs of some tokens.
class Layer {
 public:
  Layer(DType dtype, std::int64_t inputs, std::int64_t outputs, std::int64_t tokens)
      : backend_(std::move(MakeCpuBackend({.threads = 1})).value()),
        inputs_(inputs),
        outputs_(outputs),
        bytes_(RandomWeights(dtype, inputs * outputs, 1)),
        x_(RandomValues(inputs * tokens, 2)),
        weight_(std::move(
                    backend_->MakeLinear(TensorView::Dense(bytes_.data(), dtype, inputs, outputs)))
                    .value()) {}

  // Returns the outputs of the first tokens.
  std::vector<float> Run(std::int64_t tokens) {
    std::vector<float> y(static_cast<std::size_t>(outputs_ * tokens));
    const LinearOutput output{weight_.get(),
                              TensorView::Dense(y.data(), DType::kF32, outputs_, tokens)};
    const Status status =
        backend_->Linear(TensorView::Dense(x_.data(), DType::kF32, inputs_, tokens), {&output, 1});
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::int64_t inputs_;
  std::int64_t outputs_;
  std::vector<std::byte> bytes_;
  std::vector<float> x_;
  std::unique_ptr<LinearWeight> weight_;
};

class TilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!EmulateTiles()) GTEST_SKIP() << "this machine lacks the vectors of AMX";
  }
};

TEST_F(TilesTest, EveryNumberOfTokensHasTheBitsOfVectors) {
  constexpr std::int64_t kTokens = 50;
  // A type of each chain; inputs and outputs whose last chunk, step and panel are not whole.
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_1, DType::kNVFP4, DType::kQ4_K, DType::kIQ4_XS,
                            DType::kQ6_K, DType::kQ2_K}) {
    const std::int64_t inputs = InfoOf(dtype).block_size == 256 ? 512 : 448;
    Layer layer(dtype, inputs, 41, kTokens);
    std::vector<float> vectors, tiles;
    for (std::int64_t tokens = 1; tokens <= kTokens; ++tokens) {
      ASSERT_TRUE(UseCpuTarget("AVX3_DL").ok());
      vectors = layer.Run(tokens);
      const ForcedTarget forced("AMX");
      ASSERT_TRUE(forced.ok());
      tiles = layer.Run(tokens);
      ASSERT_EQ(vectors, tiles) << InfoOf(dtype).name << ", " << tokens << " tokens";
    }
  }
}

TEST_F(TilesTest, SeveralGroupsOfTilesHaveTheBitsOfVectors) {
  // More tokens than the largest group, whose inputs are few; two panels and one.
  constexpr std::int64_t kTokens = 530;
  for (const std::int64_t outputs : {17, 33}) {
    Layer layer(DType::kQ8_0, 32, outputs, kTokens);
    ASSERT_TRUE(UseCpuTarget("AVX3_DL").ok());
    const std::vector<float> vectors = layer.Run(kTokens);
    const ForcedTarget forced("AMX");
    ASSERT_TRUE(forced.ok());
    EXPECT_EQ(vectors, layer.Run(kTokens)) << outputs << " outputs";
  }
}

TEST_F(TilesTest, TilesMultiplyManyTokensAndVectorsFew) {
  if (MachineHasTiles()) GTEST_SKIP() << "only emulated instructions are counted";
  Layer layer(DType::kQ8_0, 32, 48, 8);
  const ForcedTarget forced("AMX");
  ASSERT_TRUE(forced.ok());
  const std::int64_t before = EmulatedTileInstructions();
  static_cast<void>(layer.Run(block::kMinMatrixTokens - 1));
  EXPECT_EQ(EmulatedTileInstructions(), before);
  static_cast<void>(layer.Run(block::kMinMatrixTokens));
  // Two panels take nine instructions for a scale, one takes five; the task configures and releases the tiles.
  EXPECT_EQ(EmulatedTileInstructions() - before, 9 + 5 + 2);
}

#if defined(__x86_64__)
TEST_F(TilesTest, NoTileIsConfiguredAfterAProduct) {
  Layer layer(DType::kQ4_0, 64, 32, 16);
  const ForcedTarget forced("AMX");
  ASSERT_TRUE(forced.ok());
  static_cast<void>(layer.Run(16));
  alignas(64) std::uint8_t config[64] = {1};
  asm volatile("sttilecfg %0" : "=m"(config) : : "memory");
  for (const std::uint8_t byte : config) EXPECT_EQ(byte, 0);
}
#endif

}  // namespace
}  // namespace kvcache::cpu::tiles_test
