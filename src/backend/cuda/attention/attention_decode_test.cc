// Compares the kernels that decode over aligned splits with the CPU backend, as bytes, and checks which tasks they get.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cpu/attention/attention_plan.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cuda/attention/attention_tasks.h"
#include "backend/cuda/attention/attention_testing.h"
#include "gtest/gtest.h"

namespace kvcache::cuda::attention_decode_test {
namespace {

using cpu::Attend;
using cpu::QueryAt;
using cpu::Rules;
using cpu::SameBits;
using cpu::Scene;
using cpu::SceneOptions;
using Runs = std::vector<HistoryRun>;

constexpr std::size_t kLargeShared = std::size_t{227} << 10;

// Heads, types and the tokens of a sequence: 4 and 8 rows, some of them of no token, and dims of all warps or some.
struct DecodeCase {
  SceneOptions scene;
  int tokens;
};
const DecodeCase kCases[] = {
    {{{2, 128, 128}, 8, DType::kF16, DType::kF16}, 1},
    {{{1, 128, 128}, 4, DType::kBF16, DType::kBF16}, 2},
    {{{1, 64, 48}, 3, DType::kF16, DType::kF16}, 1},
    {{{1, 96, 256}, 5, DType::kF16, DType::kF16}, 1},
    {{{1, 32, 144}, 7, DType::kBF16, DType::kBF16}, 1},
    {{{2, 128, 128}, 8, DType::kQ8_0, DType::kQ8_0}, 1},
    {{{1, 128, 128}, 8, DType::kQ8_0, DType::kQ8_0}, 1},
    {{{1, 128, 128}, 4, DType::kQ4_0, DType::kQ4_0}, 1},
    {{{1, 128, 128}, 4, DType::kQ4_0, DType::kQ4_0}, 2},
    {{{1, 64, 32}, 3, DType::kQ8_0, DType::kQ4_0}, 1},
    {{{1, 32, 160}, 6, DType::kQ4_0, DType::kQ8_0}, 1},
    {{{1, 160, 256}, 1, DType::kQ8_0, DType::kQ8_0}, 1},
};

std::string NameOf(const DecodeCase& of) {
  const SceneOptions& o = of.scene;
  return std::string(InfoOf(o.k_type).name) + " " + std::string(InfoOf(o.v_type).name) + ", " +
         std::to_string(o.heads) + " of " + std::to_string(o.shape.kv_heads) + " heads of " +
         std::to_string(o.shape.k_dim) + " and " + std::to_string(o.shape.v_dim);
}

// Histories whose tiles are aligned: of less than a tile, of whole splits, of several runs, and from a position and a
// cell on that are no multiples of 16.
std::vector<Runs> AlignedHistories() {
  return {{{0, 0, 7}},
          {{0, 16, 512}},
          {{0, 1184, 256}, {256, 528, 80}, {336, 1440, 16}, {352, 608, 570}},
          {{37, 1461, 300}}};
}

class DecodeOnDevice : public ::testing::TestWithParam<DecodeCase> {};

TEST_P(DecodeOnDevice, HasTheBitsOfTheCpu) {
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device({.seed = 3, .shared_bytes = kLargeShared});
  Scene scene(GetParam().scene, AlignedHistories());
  scene.Fill(*host);
  std::vector<QueryAt> last;
  std::vector<QueryAt> earlier;
  for (int s = 0; s < 4; ++s) {
    for (int i = 0; i < GetParam().tokens; ++i) {
      last.push_back({s, scene.End(s) - 1 - i});
      earlier.push_back({s, (scene.End(s) - 1) / 2 + 3 * i});
    }
  }
  Rules rules;
  rules.scale = 0.2f;
  EXPECT_TRUE(SameBits(Attend(device, scene, last, rules), Attend(*host, scene, last, rules)))
      << NameOf(GetParam());
  rules.window = 130;
  rules.soft_cap = 3.0f;
  rules.past = 100;
  rules.future = 5;
  for (int head = 0; head < GetParam().scene.heads; ++head) {
    rules.sinks.push_back(0.5f * static_cast<float>(head) - 1.0f);
    for (int i = 0; i < 106; ++i) {
      rules.bias.push_back(static_cast<float>((head * 31 + i * 7) % 50) * 0.1f);
    }
  }
  for (const std::vector<QueryAt>& batch : {last, earlier}) {
    EXPECT_TRUE(SameBits(Attend(device, scene, batch, rules), Attend(*host, scene, batch, rules)))
        << NameOf(GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DecodeOnDevice, ::testing::ValuesIn(kCases));

// Block 0 of a key's scale becomes NaN, in a layer of one head.
void SpoilKeyScale(const LayerKv& layer, int cell) {
  const std::int64_t blocks = layer.shape.k_dim / 32;
  const std::int64_t codes = layer.k_type == DType::kQ8_0 ? 512 : 256;
  std::byte* const at =
      layer.k + cell / 16 * blocks * (codes + 32) + blocks * codes + cell % 16 * 2;
  at[0] = at[1] = std::byte{0xff};
}

// And no others.
TEST(DecodeValues, ThatAreNotFiniteReachTheRowsThatSeeThem) {
  const auto host = cpu::CpuWithThreads(1);
  DeviceAttention device({.shared_bytes = kLargeShared});
  for (const DType type : {DType::kF16, DType::kQ8_0, DType::kQ4_0}) {
    for (const bool key : {false, true}) {
      Scene scene({{1, 32, 32}, 4, type, type}, Scene::Contiguous({300}));
      scene.Fill(*host);
      if (type == DType::kF16) {
        std::byte* const at = key ? scene.layer().k + (270 / 16 * 16 * 32 + 270 % 16) * 2
                                  : scene.layer().v + 270 * 32 * 2;
        at[0] = std::byte{0};
        at[1] = key ? std::byte{0xfe} : std::byte{0x7c};
      } else if (key) {
        SpoilKeyScale(scene.layer(), 270);
      } else {
        cpu::SetValueScale(scene.layer(), 0, 270, 0, std::numeric_limits<float>::infinity());
      }
      const std::vector<QueryAt> batch = {{0, 271}, {0, 269}};
      const std::vector<float> out = Attend(device, scene, batch, {});
      const std::vector<float> expected = Attend(*host, scene, batch, {});
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (std::isnan(expected[i])) {
          ASSERT_TRUE(std::isnan(out[i])) << i;
        } else {
          ASSERT_EQ(out[i], expected[i]) << i;
        }
      }
      EXPECT_FALSE(std::isfinite(out.front()));
      EXPECT_TRUE(std::isfinite(out.back()));
    }
  }
}

// The tasks of one token behind a history, by the rows of kTaskRows.
AttentionTasks TasksOf(const Runs& runs, int group, int wanted) {
  LayerKv layer;
  layer.shape = {2, 64, 64};
  layer.layout = KvLayout::kTiled;
  const Position positions[] = {runs.back().position + runs.back().length - 1};
  const std::int32_t history_of_query[] = {0};
  const std::span<const HistoryRun> histories[] = {runs};
  const Visibility visibility{
      .positions = positions, .history_of_query = history_of_query, .histories = histories};
  cpu::AttentionPlan plan;
  plan.Build(layer, group, 2, visibility);
  UsableRows usable;
  usable.fill(true);
  return MakeAttentionTasks(plan, layer, group, visibility, usable, {wanted, wanted},
                            kMaxPartialFloats);
}

TEST(DecodeTasks, GoToTheKernelsThatTheirTilesAllow) {
  struct Expected {
    Runs runs;
    bool aligned;
  };
  const Expected cases[] = {
      {{{0, 0, 300}}, true},
      {{{0, 160, 300}}, true},
      {{{5, 21, 300}}, true},
      {{{0, 160, 32}, {32, 16, 8}}, true},
      {{{0, 1, 300}}, false},                // tiles of positions that lie in two tiles of cells
      {{{0, 160, 30}, {30, 46, 8}}, false},  // a tile of positions in two tiles
      {{{0, 0, 32}, {48, 48, 32}}, false},   // a hole
      {{{0, 0, 32}, {600, 600, 32}}, false},
  };
  for (const Expected& of : cases) {
    for (const int group : {1, 4, 5, 8, 16}) {
      const AttentionTasks tasks = TasksOf(of.runs, group, 8);
      const bool few = group <= 8;
      const std::size_t kernel = group <= 4 ? 0 : few ? 1 : 2;
      const std::size_t place = of.aligned && few ? kernel + kFirstDecode : kernel;
      for (std::size_t i = 0; i < tasks.tasks.size(); ++i) {
        EXPECT_EQ(!tasks.tasks[i].empty(), i == place)
            << group << " " << of.runs[0].cell << " " << i;
      }
    }
  }
}

TEST(DecodeTasks, KeepTheRunsThatTheySee) {
  const AttentionTasks tasks = TasksOf({{0, 0, 256}, {256, 512, 256}, {512, 1024, 300}}, 4, 8);
  ASSERT_EQ(tasks.tasks[kFirstDecode].size(), 8u);  // of two heads
  for (int split = 0; split < 4; ++split) {
    const AttendTask& task = tasks.tasks[kFirstDecode][static_cast<std::size_t>(split)];
    EXPECT_EQ(task.first_split, split);
    EXPECT_EQ(task.first_run, std::min(split, 2));
    EXPECT_EQ(task.runs, 1);
  }
}

// Each part has as many splits as the others, and all parts run at once.
TEST(DecodeTasks, AreCutEqually) {
  for (const auto& [length, wanted, parts] :
       {std::tuple{128 * 256, 264, 128}, {128 * 256, 40, 19}, {16 * 256, 12, 6}, {100, 264, 1}}) {
    const AttentionTasks tasks = TasksOf({{0, 0, length}}, 4, wanted);
    EXPECT_EQ(tasks.tasks[kFirstDecode].size(), static_cast<std::size_t>(2 * parts)) << length;
    std::int32_t splits = 0;
    for (const AttendTask& task : tasks.tasks[kFirstDecode]) splits += task.splits;
    EXPECT_EQ(splits, 2 * ((length + 255) / 256));
  }
}

}  // namespace
}  // namespace kvcache::cuda::attention_decode_test
