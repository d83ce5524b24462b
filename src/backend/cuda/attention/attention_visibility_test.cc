// Checks on a device that what a query does not see cannot matter, and what it sees does.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/common/kv_blocks_testing.h"
#include "backend/cuda/attention/attention_testing.h"
#include "gtest/gtest.h"

namespace kvcache::cuda::attention_visibility_test {
namespace {

using cpu::Attend;
using cpu::QueryAt;
using cpu::Rules;
using cpu::SameBits;
using cpu::Scene;
using Runs = std::vector<HistoryRun>;

constexpr std::size_t kLargeShared = std::size_t{227} << 10;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<QueryAt> Backwards(int sequence, Position last, int tokens) {
  std::vector<QueryAt> batch;
  for (int i = 0; i < tokens; ++i) batch.push_back({sequence, last - i});
  return batch;
}

TEST(AttentionVisibilityOnDevice, NothingVisibleGivesZeros) {
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device({.shared_bytes = kLargeShared});
  Scene scene({{1, 16, 24}, 2, DType::kF16, DType::kF16}, {{{50, 0, 30}}, {}});
  scene.Fill(*host);
  const Rules rules{.sinks = {1.0f, 2.0f}};
  for (const std::size_t tokens : {1u, 40u}) {
    std::vector<QueryAt> batch(tokens, QueryAt{0, 20});
    batch.resize(2 * tokens, QueryAt{1, 20});
    const std::vector<float> out = Attend(device, scene, batch, rules);
    EXPECT_TRUE(SameBits(out, std::vector<float>(out.size(), 0.0f)));
  }
  EXPECT_TRUE(Attend(device, scene, {}, {}).empty());
}

// An infinite value, or a key that is not a number, of a later token of the batch must not affect other tokens.
TEST(AttentionVisibilityOnDevice, UnseenCellsNeverMatter) {
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device({.shared_bytes = kLargeShared});
  for (const DType k_type : {DType::kF32, DType::kQ8_0}) {
    for (const DType v_type : {DType::kF32, DType::kQ8_0}) {
      for (const int tokens : {3, 60}) {
        Scene scene({{1, 32, 32}, 2, k_type, v_type}, Scene::Contiguous({300}));
        scene.Fill(*host);
        std::vector<QueryAt> batch = Backwards(0, 298, tokens);
        const std::vector<float> expected = Attend(device, scene, batch, {});
        if (v_type == DType::kF32) {
          std::fill_n(reinterpret_cast<float*>(scene.layer().v) + 299 * 32, 32, kInfinity);
        } else {
          cpu::SetValueScale(scene.layer(), 0, 299, 0, kInfinity);
        }
        if (k_type == DType::kF32) {  // dim 0 of cell 299
          reinterpret_cast<float*>(scene.layer().k)[299 / 16 * 16 * 32 + 299 % 16] =
              std::numeric_limits<float>::quiet_NaN();
        }
        EXPECT_TRUE(SameBits(Attend(device, scene, batch, {}), expected)) << tokens;
        batch.push_back({0, 299});
        const std::vector<float> out = Attend(device, scene, batch, {});
        EXPECT_FALSE(std::isfinite(out.back()));
        EXPECT_TRUE(SameBits(
            {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(expected.size())}, expected));
      }
    }
  }
}

// Siblings of a tree of drafts are in the same tile of cells.
TEST(AttentionVisibilityOnDevice, SiblingsNeverMatter) {
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device({.shared_bytes = kLargeShared});
  for (const bool v_in_k : {false, true}) {
    for (const int tokens : {2, 20}) {
      std::vector<Runs> paths;
      std::vector<QueryAt> batch;
      for (int i = 0; i < tokens; ++i) {
        paths.push_back({{0, 0, 264}, {264, 264 + i, 1}});
        batch.push_back({i, 264});
      }
      Scene scene({{1, 16, v_in_k ? 16 : 24, v_in_k}, 2, DType::kF32, DType::kF32}, paths);
      scene.Fill(*host);
      const std::vector<float> expected = Attend(device, scene, batch, {});
      EXPECT_TRUE(SameBits(expected, Attend(*host, scene, batch, {})));
      if (v_in_k) {
        for (int d = 0; d < 16; ++d) {
          reinterpret_cast<float*>(scene.layer().k)[265 / 16 * 256 + d * 16 + 265 % 16] = kInfinity;
        }
      } else {
        std::fill_n(reinterpret_cast<float*>(scene.layer().v) + 265 * 24, 24, kInfinity);
      }
      const std::vector<float> out = Attend(device, scene, batch, {});
      const std::size_t row = expected.size() / batch.size();
      EXPECT_FALSE(std::isfinite(out[row]));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (i / row == 1) continue;
        ASSERT_EQ(out[i], expected[i]) << i;
      }
    }
  }
}

// The number of queries decides the kernel and the place of a row in it, never the bits.
TEST(AttentionVisibilityOnDevice, BitsDoNotDependOnTheBatch) {
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device({.seed = 5, .shared_bytes = kLargeShared});
  const cpu::SceneOptions kept[] = {
      {{1, 64, 48}, 4, DType::kF16, DType::kF16},
      {{1, 64, 64}, 4, DType::kQ8_0, DType::kQ4_0},
  };
  for (const cpu::SceneOptions& options : kept) {
    Scene scene(options, {{{0, 5, 330}}});
    scene.Fill(*host);
    const std::vector<QueryAt> batch = Backwards(0, 329, 70);
    const std::vector<float> at_once = Attend(device, scene, batch, {});
    for (const std::size_t piece : {1u, 2u, 3u, 7u, 33u}) {
      const std::vector<QueryAt> part(batch.begin(),
                                      batch.begin() + static_cast<std::ptrdiff_t>(piece));
      const std::vector<float> out = Attend(device, scene, part, {});
      EXPECT_TRUE(SameBits(
          out, {at_once.begin(), at_once.begin() + static_cast<std::ptrdiff_t>(out.size())}))
          << piece;
    }
  }
}

// More results than the merge lists at once, and a fork near the end that shares all but the last split.
TEST(AttentionVisibilityOnDevice, LongHistoriesMergeManyResults) {
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device;
  constexpr Position kLength = 150 * 256 - 40;
  Scene scene({{1, 4, 4}, 1, DType::kF32, DType::kF32},
              {{{0, 0, kLength}}, {{0, 0, kLength - 9}, {kLength - 9, 39000, 3}}});
  scene.Fill(*host);
  const std::vector<QueryAt> batch = {{0, kLength - 1}, {1, kLength - 7}};
  EXPECT_TRUE(SameBits(Attend(device, scene, batch, {}), Attend(*host, scene, batch, {})));
}

TEST(AttentionErrorsOnDevice, NameTheHeadsThatDoNotFit) {
  if (MakeShimDevice()->info().name != "shim") GTEST_SKIP() << "a real device has more memory";
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device({.shared_bytes = std::size_t{48} << 10});
  Scene scene({{1, 4096, 16}, 1, DType::kF32, DType::kF32}, Scene::Contiguous({1}));
  std::vector<float> memory(5000);
  const std::vector<Position> positions = {0};
  const std::vector<std::int32_t> index = {0};
  const std::vector<std::span<const HistoryRun>> histories = {scene.runs()[0]};
  const Status status =
      device.Attention(scene.layer(), TensorView::Dense(memory.data(), DType::kF32, 4096, 1),
                       {.positions = positions,
                        .history_of_query = index,
                        .histories = histories,
                        .bidirectional = {}},
                       {}, TensorView::Dense(memory.data(), DType::kF32, 16, 1));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("heads of 4096 and 16 values do not fit into the 49152 bytes"),
            std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace kvcache::cuda::attention_visibility_test
