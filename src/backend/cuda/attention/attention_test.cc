// Compares attention on a device with the CPU backend's, as bytes: all types, shapes of heads, forms of
// visibility and cells in any runs.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cuda/attention/attention_plans.h"
#include "backend/cuda/attention/attention_testing.h"
#include "gtest/gtest.h"

namespace kvcache::cuda::attention_test {
namespace {

using cpu::Attend;
using cpu::QueryAt;
using cpu::Range;
using cpu::Rules;
using cpu::SameBits;
using cpu::Scene;
using cpu::SceneOptions;
using Runs = std::vector<HistoryRun>;

constexpr std::size_t kLargeShared = std::size_t{227} << 10;  // of an H100

const DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0};

bool IsBlock(DType type) {
  return type == DType::kQ8_0 || type == DType::kQ4_0;
}

std::string NameOf(const SceneOptions& o) {
  return std::string(InfoOf(o.k_type).name) + " " + std::string(InfoOf(o.v_type).name) + " " +
         std::to_string(o.heads) + " of " + std::to_string(o.shape.kv_heads) + " heads of " +
         std::to_string(o.shape.k_dim) + " and " + std::to_string(o.shape.v_dim) +
         (o.shape.v_in_k ? " in K" : "");
}

class Comparison {
 public:
  explicit Comparison(const ShimOptions& options = {},
                      std::int64_t max_partial_floats = kMaxPartialFloats)
      : host_(cpu::CpuWithThreads(1)), device_(options, max_partial_floats) {}

  ::testing::AssertionResult Agrees(const Scene& scene, const std::vector<QueryAt>& batch,
                                    const Rules& rules) {
    return SameBits(Attend(device_, scene, batch, rules), Attend(*host_, scene, batch, rules));
  }
  Backend& host() { return *host_; }
  DeviceAttention& device() { return device_; }

 private:
  std::unique_ptr<Backend> host_;
  DeviceAttention device_;
};

// --- Shapes

const SceneOptions kShapes[] = {
    {{2, 64, 64}, 8, DType::kF16, DType::kF16},
    {{3, 32, 64}, 9, DType::kBF16, DType::kBF16},
    {{1, 128, 128}, 4, DType::kF32, DType::kF32},
    {{2, 80, 96}, 2, DType::kF16, DType::kF32},
    {{2, 33, 37}, 10, DType::kF32, DType::kBF16},
    {{1, 5, 3}, 2, DType::kBF16, DType::kF16},
    {{1, 1, 1}, 7, DType::kF32, DType::kF16},
    {{1, 24, 300}, 3, DType::kF16, DType::kF16},
    {{1, 96, 64, true}, 8, DType::kF16, DType::kF16},
    {{1, 288, 264, true}, 3, DType::kF32, DType::kF32},
    {{2, 53, 39, true}, 6, DType::kBF16, DType::kBF16},
    {{1, 9, 9, true}, 40, DType::kF32, DType::kF32},
    {{1, 96, 64, true}, 8, DType::kQ8_0, DType::kQ8_0},
    {{1, 576, 512, true}, 20, DType::kQ8_0, DType::kQ8_0},
    {{2, 160, 160, true}, 6, DType::kQ8_0, DType::kQ8_0},
    {{1, 1056, 1024, true}, 3, DType::kQ8_0, DType::kQ8_0},
    {{2, 64, 96}, 8, DType::kQ8_0, DType::kQ8_0},
    {{1, 128, 128}, 16, DType::kQ8_0, DType::kQ8_0},
    {{1, 96, 64}, 7, DType::kQ4_0, DType::kQ4_0},
    {{2, 32, 160}, 4, DType::kQ4_0, DType::kQ8_0},
    {{1, 64, 40}, 12, DType::kQ8_0, DType::kF16},
    {{1, 40, 64}, 3, DType::kF16, DType::kQ4_0},
};

class AttentionShapes : public ::testing::TestWithParam<SceneOptions> {};

// Decode and prefill of one sequence and a short one beside it, in all layouts.
TEST_P(AttentionShapes, HaveTheBitsOfTheCpu) {
  Comparison compare({.shared_bytes = kLargeShared});
  for (const KvLayout layout : {KvLayout::kTiled, KvLayout::kPlain}) {
    for (const bool transposed : {false, true}) {
      SceneOptions options = GetParam();
      const bool blocks = IsBlock(options.k_type) || IsBlock(options.v_type);
      if (layout == KvLayout::kTiled ? transposed : blocks) continue;
      if (transposed && options.shape.v_in_k) continue;
      options.layout = layout;
      options.v_transposed = transposed;
      Scene scene(options, Scene::Contiguous({300, 20}));
      scene.Fill(compare.host());
      EXPECT_TRUE(compare.Agrees(scene, {{0, 299}, {1, 19}}, {})) << NameOf(options);
      EXPECT_TRUE(compare.Agrees(scene, Range(0, 260, 300), {})) << NameOf(options);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionShapes, ::testing::ValuesIn(kShapes));

// --- Partial results in several launches

// Bounds of one row's result, of a few rows' and of all.
TEST(AttentionRounds, HaveTheBitsOfTheCpu) {
  std::vector<Runs> runs = Scene::Contiguous({700, 300, 20});
  runs.push_back(runs.front());  // the same cells
  for (const SceneOptions& options :
       {SceneOptions{{1, 64, 32, true}, 5, DType::kQ8_0, DType::kQ8_0},
        SceneOptions{{2, 32, 64}, 4, DType::kF16, DType::kQ8_0}}) {
    const std::int64_t row = cpu::PartialStride(options.shape.v_dim);
    for (const std::int64_t floats : {row, 20 * row, 100 * row}) {
      Comparison compare({.shared_bytes = kLargeShared}, floats);
      Scene scene(options, runs);
      scene.Fill(compare.host());
      EXPECT_TRUE(compare.Agrees(scene, {{0, 699}, {1, 299}, {3, 699}, {2, 19}, {1, 200}}, {}))
          << NameOf(options) << " " << floats;
      std::vector<QueryAt> batch = Range(0, 690, 700);
      batch.insert(batch.begin() + 4, {{1, 299}, {2, 10}});
      EXPECT_TRUE(compare.Agrees(scene, batch, {.window = 400}))
          << NameOf(options) << " " << floats;
    }
  }
}

TEST(AttentionRounds, KeepTheBoundOfPartialResults) {
  const SceneOptions options{{1, 96, 64, true}, 20, DType::kQ8_0, DType::kQ8_0};
  const Scene scene(options, Scene::Contiguous({5000, 5000, 5000, 20}));
  const std::vector<std::span<const HistoryRun>> histories(scene.runs().begin(),
                                                           scene.runs().end());
  const std::vector<Position> positions = {4999, 4999, 4999, 19};
  const std::vector<std::int32_t> history_of_query = {0, 1, 2, 3};
  const Visibility visibility{
      .positions = positions, .history_of_query = history_of_query, .histories = histories};
  const std::unique_ptr<Device> device = MakeShimDevice();
  const std::int64_t token = 20 * cpu::PartialStride(64);  // one result
  for (const std::int64_t bound : {token, 7 * token, 25 * token, 1000 * token}) {
    AttentionPlans plans(bound);
    const auto plan =
        plans.Find(*device, {scene.layer(), 20, {false, false, true, false}, visibility});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE((*plan)->partial_floats, bound);
    EXPECT_EQ((*plan)->rounds.size() == 1, bound == 1000 * token) << bound;
    std::int64_t tokens = 0;
    for (const PlacedRound& round : (*plan)->rounds) tokens += round.merge_token_count;
    EXPECT_EQ(tokens, 4) << bound;
  }
}

}  // namespace
}  // namespace kvcache::cuda::attention_test
