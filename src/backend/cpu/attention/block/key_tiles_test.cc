// Scores by the matrix tiles of AMX have the bits of vectors.
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/cpu_tiles.h"
#include "backend/cpu/testing.h"
#include "gtest/gtest.h"
#include "support/internal/tile_emulator.h"

namespace kvcache::cpu::key_tiles_test {
namespace {

using kvcache::testing::EmulatedTileInstructions;
using kvcache::testing::EmulateTiles;

class KeyTilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!EmulateTiles()) GTEST_SKIP() << "this machine lacks the vectors of AMX";
  }

  static std::vector<float> AttendWith(const std::string& target, const Scene& scene,
                                       const std::vector<QueryAt>& batch) {
    const testing::ForcedTarget forced(target);
    EXPECT_TRUE(forced.ok());
    return Attend(*CpuWithThreads(1), scene, batch, {});
  }
};

TEST_F(KeyTilesTest, HaveTheBitsOfVectors) {
  // Dims of one to nine blocks, so that steps have all sizes; groups of heads, so that groups of rows do.
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    for (const int k_dim : {32, 64, 96, 128, 160, 288}) {
      for (const int group : {1, 3}) {
        Scene scene({{1, k_dim, 64}, group, type, type}, Scene::Contiguous({300}));
        scene.Fill(*CpuWithThreads(1));
        for (const int tokens : {21, 24, 37, 50}) {
          const std::vector<QueryAt> batch = Range(0, 300 - tokens, 300);
          EXPECT_TRUE(
              SameBits(AttendWith("AMX", scene, batch), AttendWith("AVX3_DL", scene, batch)))
              << InfoOf(type).name << ", keys of " << k_dim << ", " << tokens << " tokens of "
              << group << " heads";
        }
      }
    }
  }
}

TEST_F(KeyTilesTest, MultiplyKeysOfBlockTypesOnly) {
  if (MachineHasTiles()) GTEST_SKIP() << "only emulated instructions are counted";
  const std::pair<DType, bool> cases[] = {
      {DType::kQ8_0, true}, {DType::kQ4_0, true}, {DType::kF16, false}};
  for (const auto& [type, uses_tiles] : cases) {
    Scene scene({{1, 64, 64}, 1, type, type}, Scene::Contiguous({64}));
    scene.Fill(*CpuWithThreads(1));
    const std::int64_t before = EmulatedTileInstructions();
    AttendWith("AMX", scene, Range(0, 24, 64));
    EXPECT_EQ(EmulatedTileInstructions() > before, uses_tiles) << InfoOf(type).name;
  }
}

}  // namespace
}  // namespace kvcache::cpu::key_tiles_test
