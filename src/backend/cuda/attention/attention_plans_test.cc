// Checks that a plan is made once for calls that see the same, and again whenever anything differs.
#include "backend/cuda/attention/attention_plans.h"

#include <functional>
#include <vector>

#include "backend/cuda/shim/counting_device.h"
#include "gtest/gtest.h"

namespace kvcache::cuda::attention_plans_test {
namespace {

// A call with two sequences, whose spans belong to it.
struct Scene {
  LayerKv layer;
  int group = 4;
  UsableRows usable{};
  std::vector<HistoryRun> first = {{0, 64, 300}, {300, 400, 10}};
  std::vector<HistoryRun> second = {{320, 0, 20}};
  std::vector<Position> positions = {309, 339};
  std::vector<std::int32_t> history_of_query = {0, 1};
  std::vector<std::uint8_t> bidirectional;
  std::int32_t window = 0;
  std::int32_t chunk = 0;

  Scene() {
    layer.shape = {2, 64, 64, false};
    layer.k_type = layer.v_type = DType::kF16;
    layer.layout = KvLayout::kTiled;
    layer.cells = 1024;
    usable.fill(true);
  }

  PlacedPlan Find(Device& device, AttentionPlans& plans) const {
    const std::span<const HistoryRun> histories[] = {first, second};
    const Visibility visibility{.positions = positions,
                                .history_of_query = history_of_query,
                                .histories = histories,
                                .bidirectional = bidirectional,
                                .window = window,
                                .chunk = chunk};
    const auto plan = plans.Find(device, {layer, group, usable, visibility});
    EXPECT_TRUE(plan.ok());
    return **plan;
  }
};

TEST(AttentionPlans, LayersThatSeeTheSameShareOne) {
  CountingDevice device;
  AttentionPlans plans;
  const PlacedPlan plan = Scene().Find(device, plans);
  EXPECT_EQ(device.counts.copies_in, 1);
  for (int layer = 0; layer < 5; ++layer) {
    Scene scene;  // its spans lie elsewhere
    std::byte cells[16];
    scene.layer.k = scene.layer.v = cells;
    const PlacedPlan again = scene.Find(device, plans);
    ASSERT_EQ(again.rounds.size(), 1u);
    EXPECT_EQ(again.rounds[0].tokens, plan.rounds.at(0).tokens);
    EXPECT_EQ(again.partial_floats, plan.partial_floats);
  }
  EXPECT_EQ(device.counts.copies_in, 1);
}

TEST(AttentionPlans, AnythingElseNeedsAnother) {
  const std::vector<std::function<void(Scene&)>> changes = {
      [](Scene& s) { s.layer.shape.kv_heads = 4; },
      [](Scene& s) { s.layer.shape.k_dim = 128; },
      [](Scene& s) { s.layer.shape.v_dim = 128; },
      [](Scene& s) { s.layer.k_type = DType::kQ8_0; },
      [](Scene& s) { s.layer.v_type = DType::kQ8_0; },
      [](Scene& s) { s.layer.layout = KvLayout::kPlain; },
      [](Scene& s) { s.group = 8; },
      [](Scene& s) { s.usable[0] = false; },
      [](Scene& s) { s.positions[1] = 338; },
      [](Scene& s) {
        s.history_of_query = {1, 0};
      },
      [](Scene& s) { s.first[1].cell = 416; },
      [](Scene& s) { s.first[1].length = 11; },
      [](Scene& s) { s.second[0].position = 321; },
      [](Scene& s) { s.first.pop_back(); },
      [](Scene& s) {
        s.second.push_back({340, 96, 5});
      },
      // The same runs in all, but of other histories.
      [](Scene& s) {
        s.second.insert(s.second.begin(), s.first.back());
        s.first.pop_back();
      },
      [](Scene& s) {
        s.bidirectional = {1, 0};
      },
      [](Scene& s) { s.window = 16; },
      [](Scene& s) { s.chunk = 16; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CountingDevice device;
    AttentionPlans plans;
    Scene().Find(device, plans);
    Scene other;
    changes[i](other);
    other.Find(device, plans);
    EXPECT_EQ(device.counts.copies_in, 2) << i;
    // Both are there now.
    Scene().Find(device, plans);
    other.Find(device, plans);
    EXPECT_EQ(device.counts.copies_in, 2) << i;
  }
}

TEST(AttentionPlans, TheLeastRecentlyUsedOneGoes) {
  CountingDevice device;
  AttentionPlans plans;
  std::vector<Scene> scenes(5);
  for (std::size_t i = 0; i < scenes.size(); ++i) scenes[i].window = static_cast<int>(i);
  for (std::size_t i = 0; i < 4; ++i) scenes[i].Find(device, plans);
  scenes[0].Find(device, plans);
  EXPECT_EQ(device.counts.copies_in, 4);
  scenes[4].Find(device, plans);  // in the place of scene 1
  for (const std::size_t i : {0, 2, 3, 4}) scenes[i].Find(device, plans);
  EXPECT_EQ(device.counts.copies_in, 5);
  scenes[1].Find(device, plans);
  EXPECT_EQ(device.counts.copies_in, 6);
}

// A plan that could not be copied is not found later.
TEST(AttentionPlans, AFailedCopyLeavesNone) {
  CountingDevice device;
  AttentionPlans plans;
  Scene().Find(device, plans);
  Scene other;
  other.window = 9;
  device.fails = true;
  const std::span<const HistoryRun> histories[] = {other.first, other.second};
  const Visibility visibility{.positions = other.positions,
                              .history_of_query = other.history_of_query,
                              .histories = histories,
                              .window = 9};
  EXPECT_EQ(
      plans.Find(device, {other.layer, other.group, other.usable, visibility}).status().code(),
      StatusCode::kIo);
  device.fails = false;
  other.Find(device, plans);
  Scene().Find(device, plans);
  EXPECT_EQ(device.counts.copies_in, 2);
}

}  // namespace
}  // namespace kvcache::cuda::attention_plans_test
