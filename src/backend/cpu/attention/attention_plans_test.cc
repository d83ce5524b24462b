// When a call gets the plan of an earlier one, and when it does not.
#include "backend/cpu/attention/attention_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache::cpu::attention_plans_test {
namespace {

constexpr int kGroup = 4;
constexpr int kThreads = 2;
// What a plan that was built has nowhere: a mark of the plan before.
constexpr std::int32_t kMark = 1234;

class AttentionPlansTest : public ::testing::Test {
 protected:
  AttentionPlansTest() {
    for (std::int32_t i = 0; i < 3; ++i) {
      runs_.push_back({{0, 1000 * i, 200 + i}});
      positions_.push_back(199 + i);
      histories_of_queries_.push_back(i);
    }
    runs_[1].push_back({300, 5000, 7});
    positions_[1] = 306;
  }

  Visibility Visible() {
    histories_.assign(runs_.begin(), runs_.end());
    return {.positions = positions_,
            .history_of_query = histories_of_queries_,
            .histories = histories_,
            .bidirectional = bidirectional_,
            .window = window_};
  }
  AttentionPlan* Plan() {
    auto plan = plans_.For(layer_, group_, threads_, std::ssize(positions_), Visible());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? *plan : nullptr;
  }
  static std::int32_t& FirstWaiting(AttentionPlan& plan) {
    return plan.Waiting(plan.sequences().front(), 0);
  }
  // Returns whether the next call gets the plan of this one.
  template <class Change>
  bool IsSameAfter(const Change& change) {
    FirstWaiting(*Plan()) = kMark;
    change();
    return FirstWaiting(*Plan()) == kMark;
  }
  // Checks the plan against one that is built for these inputs alone.
  void ExpectRight() {
    AttentionPlan& plan = *Plan();
    AttentionPlan built;
    built.Build(layer_, group_, threads_, Visible());
    ASSERT_EQ(plan.tokens().size(), built.tokens().size());
    for (std::size_t i = 0; i < built.tokens().size(); ++i) {
      EXPECT_EQ(plan.tokens()[i].position, built.tokens()[i].position);
      EXPECT_EQ(plan.tokens()[i].seen.begin, built.tokens()[i].seen.begin);
      EXPECT_EQ(plan.tokens()[i].seen.end, built.tokens()[i].seen.end);
    }
    ASSERT_EQ(plan.nodes().size(), built.nodes().size());
    for (std::size_t i = 0; i < built.nodes().size(); ++i) {
      EXPECT_EQ(plan.nodes()[i].seen.end, built.nodes()[i].seen.end);
      EXPECT_EQ(plan.nodes()[i].splits, built.nodes()[i].splits);
    }
    EXPECT_EQ(plan.tasks().size(), built.tasks().size());
    EXPECT_EQ(plan.partial_floats(), built.partial_floats());
    EXPECT_EQ(FirstWaiting(plan), FirstWaiting(built));
  }

  AttentionPlans plans_;
  LayerKv layer_ = {.shape = {2, 64, 64},
                    .k_type = DType::kF16,
                    .v_type = DType::kF16,
                    .layout = KvLayout::kTiled,
                    .cells = 8192};
  int group_ = kGroup;
  int threads_ = kThreads;
  std::int32_t window_ = 0;
  std::vector<std::vector<HistoryRun>> runs_;
  std::vector<Position> positions_;
  std::vector<std::int32_t> histories_of_queries_;
  std::vector<std::uint8_t> bidirectional_;
  std::vector<std::span<const HistoryRun>> histories_;
};

TEST_F(AttentionPlansTest, TheNextLayerGetsThePlanOfTheLayerBefore) {
  std::byte other{};
  EXPECT_TRUE(IsSameAfter([] {}));
  EXPECT_TRUE(IsSameAfter([&] { layer_.k = &other; }));
  // The same numbers in other memory.
  EXPECT_TRUE(IsSameAfter([&] { runs_ = std::vector(runs_); }));
}

TEST_F(AttentionPlansTest, WhatAPlanDependsOnMakesAnother) {
  // In the memory that the last call saw.
  EXPECT_FALSE(IsSameAfter([&] { ++positions_[2]; }));
  ExpectRight();
  EXPECT_FALSE(IsSameAfter([&] { ++runs_[0].back().length; }));
  EXPECT_FALSE(IsSameAfter([&] { ++runs_[1].back().cell; }));
  EXPECT_FALSE(IsSameAfter([&] { ++runs_[1].back().position; }));
  EXPECT_FALSE(IsSameAfter([&] { runs_[1].pop_back(); }));
  EXPECT_FALSE(IsSameAfter([&] { histories_of_queries_[0] = 2; }));
  EXPECT_FALSE(IsSameAfter([&] { bidirectional_ = {0, 1, 0}; }));
  EXPECT_FALSE(IsSameAfter([&] { bidirectional_ = {1, 1, 0}; }));
  EXPECT_FALSE(IsSameAfter([&] { bidirectional_.clear(); }));
  EXPECT_FALSE(IsSameAfter([&] { layer_.shape.kv_heads = 4; }));
  EXPECT_FALSE(IsSameAfter([&] { layer_.k_type = DType::kQ8_0; }));
  EXPECT_FALSE(IsSameAfter([&] { layer_.cells += 64; }));
  EXPECT_FALSE(IsSameAfter([&] { group_ = 2; }));
  EXPECT_FALSE(IsSameAfter([&] { threads_ = 5; }));
  EXPECT_FALSE(IsSameAfter([&] { window_ = 100; }));
  ExpectRight();
  EXPECT_FALSE(IsSameAfter([&] {
    runs_.push_back({{0, 7000, 50}});
    positions_.push_back(49);
    histories_of_queries_.push_back(3);
  }));
  ExpectRight();
}

TEST_F(AttentionPlansTest, ARunMayNotMoveFromOneHistoryToAnother) {
  runs_ = {{{0, 0, 10}, {20, 50, 10}}, {{0, 100, 10}}};
  positions_ = {9, 9};
  histories_of_queries_ = {0, 1};
  // The runs of both, one after another, stay as they are.
  runs_[1].front().position = 40;
  positions_[1] = 49;
  EXPECT_FALSE(IsSameAfter([&] {
    runs_[1].insert(runs_[1].begin(), runs_[0].back());
    runs_[0].pop_back();
  }));
  ExpectRight();
}

TEST_F(AttentionPlansTest, TwoKindsOfLayersHaveAPlanEach) {
  FirstWaiting(*Plan()) = kMark;
  window_ = 100;
  FirstWaiting(*Plan()) = kMark + 1;
  for (int layer = 0; layer < 3; ++layer) {
    window_ = 0;
    EXPECT_EQ(FirstWaiting(*Plan()), kMark);
    window_ = 100;
    EXPECT_EQ(FirstWaiting(*Plan()), kMark + 1);
  }
  window_ = 50;  // takes the place of the one that was not used last
  ExpectRight();
  window_ = 100;
  EXPECT_EQ(FirstWaiting(*Plan()), kMark + 1);
}

TEST_F(AttentionPlansTest, SequencesThatDecodeGrowUntilOneBeginsASplit) {
  // Two sequences share three splits.
  runs_ = {{{0, 0, 800}}, {{0, 1024, 768}, {768, 2048, 10}}, {{0, 1024, 768}, {768, 3072, 20}}};
  positions_ = {799, 777, 787};
  group_ = 1;
  ASSERT_NE(Plan(), nullptr);
  int grown = 0;
  for (int step = 0; step < 700; ++step) {
    const bool begins = std::any_of(positions_.begin(), positions_.end(), [](Position position) {
      return (position + 1) % kSplitPositions == 0;
    });
    const bool same = IsSameAfter([&] {
      for (Position& position : positions_) ++position;
      for (auto& runs : runs_) ++runs.back().length;
    });
    EXPECT_EQ(same, !begins) << step;
    grown += same ? 1 : 0;
    FirstWaiting(*Plan()) = Plan()->sequences().front().splits;
    ExpectRight();
  }
  EXPECT_GT(grown, 600);
}

TEST_F(AttentionPlansTest, WhatIsNoDecodeDoesNotGrow) {
  const auto grow = [&] {
    for (Position& position : positions_) ++position;
    for (auto& runs : runs_) ++runs.back().length;
  };
  EXPECT_TRUE(IsSameAfter(grow));
  window_ = 100;
  EXPECT_FALSE(IsSameAfter(grow));
  window_ = 0;
  bidirectional_ = {1, 0, 0};
  EXPECT_FALSE(IsSameAfter(grow));
  bidirectional_.clear();
  --positions_[0];  // the query is not the last token
  EXPECT_FALSE(IsSameAfter(grow));
  ++positions_[0];
  ASSERT_NE(Plan(), nullptr);
  EXPECT_FALSE(IsSameAfter([&] {
    grow();
    runs_[1].front().cell += 3000;
  }));
  EXPECT_FALSE(IsSameAfter([&] {
    grow();
    runs_[2].push_back({500, 4000, 1});
  }));
  runs_[2].pop_back();
  histories_of_queries_ = {0, 2, 1};
  positions_[1] = runs_[2].back().position + runs_[2].back().length - 1;
  positions_[2] = runs_[1].back().position + runs_[1].back().length - 1;
  EXPECT_FALSE(IsSameAfter(grow));
  ExpectRight();
}

TEST_F(AttentionPlansTest, APlanGrowsWithinTheLayersCells) {
  runs_ = {{{0, 8092, 99}}};
  positions_ = {98};
  histories_of_queries_ = {0};
  EXPECT_TRUE(IsSameAfter([&] {
    positions_[0] = 99;
    runs_[0][0].length = 100;
  }));
  positions_[0] = 100;
  runs_[0][0].length = 101;
  EXPECT_EQ(plans_.For(layer_, group_, threads_, 1, Visible()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(AttentionPlansTest, QueriesAreCountedBehindAPlanToo) {
  ASSERT_NE(Plan(), nullptr);
  for (const std::int64_t batch : {2, 4}) {
    EXPECT_EQ(plans_.For(layer_, group_, threads_, batch, Visible()).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_F(AttentionPlansTest, DamagedRunsAreRefusedBehindAPlanForGoodOnes) {
  ASSERT_NE(Plan(), nullptr);
  const std::int32_t cell = runs_[2].back().cell;
  runs_[2].back().cell = 8192;
  EXPECT_EQ(plans_.For(layer_, group_, threads_, 3, Visible()).status().code(),
            StatusCode::kInvalidArgument);
  runs_[2].back().cell = cell;
  ExpectRight();
}

}  // namespace
}  // namespace kvcache::cpu::attention_plans_test
