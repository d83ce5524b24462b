#include "kvcache/host_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kvcache/cpu_backend.h"

namespace kvcache::host_routing_test {
namespace {

constexpr int kExperts = 9;
constexpr int kChosen = 3;
constexpr std::int64_t kWidth = 5;

class HostRoutingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(routing_.Reserve({.tokens = 64, .experts = kExperts, .chosen = kChosen}).ok());
    routing_.Use(*backend_);
  }

  std::vector<float> Draw(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = std::normal_distribution<float>()(random_);
    return values;
  }
  static TensorView View(std::vector<float>& values, std::int64_t width) {
    return TensorView::Dense(values.data(), DType::kF32, width,
                             static_cast<std::int64_t>(values.size()) / width);
  }

  // Routes a batch. One expert gets no token.
  void Route(std::int64_t batch, std::span<const float> factors = {}) {
    std::vector<float> logits = Draw(kExperts * batch);
    for (std::size_t i = 4; i < logits.size(); i += kExperts) logits[i] = -100.0f;
    choices_.resize(static_cast<std::size_t>(batch * kChosen));
    weights_.resize(choices_.size());
    const TensorView view = View(logits, kExperts);
    ASSERT_TRUE(backend_->Route(view, options_, choices_, weights_).ok());
    ASSERT_TRUE(routing_.Route(view, options_, factors).ok());
    slots_ = routing_.Slots().value();
  }

  std::mt19937 random_{1};
  std::unique_ptr<Backend> backend_ = std::move(MakeCpuBackend({.threads = 1})).value();
  const RouterOptions options_{.chosen = kChosen};
  HostRouting routing_;
  std::vector<std::int32_t> choices_;
  std::vector<float> weights_;
  ExpertSlots slots_;
};

TEST_F(HostRoutingTest, SlotsAreSortedByExpertAndThenByToken) {
  for (const std::int64_t batch : {1, 5, 64, 2}) {
    Route(batch);
    ASSERT_EQ(routing_.slots().size(), choices_.size());
    std::vector<std::pair<std::int32_t, std::int32_t>> by_slot(choices_.size());
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const auto slot = static_cast<std::size_t>(routing_.slots()[i]);
      const auto token = static_cast<std::int32_t>(i / kChosen);
      EXPECT_EQ(slots_.tokens[slot], token);
      EXPECT_EQ(slots_.experts[slot], choices_[i]);
      by_slot[slot] = {choices_[i], token};
    }
    EXPECT_TRUE(std::is_sorted(by_slot.begin(), by_slot.end()));
  }
}

TEST_F(HostRoutingTest, GathersAndScalesColumnsBySlot) {
  constexpr std::int64_t kBatch = 7;
  Route(kBatch);
  std::vector<float> x = Draw(kWidth * kBatch), table = Draw(kWidth * kExperts);
  const std::vector<float> factors = Draw(kExperts);
  std::vector<float> columns(static_cast<std::size_t>(kWidth * kBatch * kChosen));
  std::vector<float> rows(columns.size());
  ASSERT_TRUE(routing_.GatherTokens(View(x, kWidth), View(columns, kWidth)).ok());
  ASSERT_TRUE(routing_.GatherExperts(View(table, kWidth), View(rows, kWidth)).ok());
  ASSERT_TRUE(routing_.ScaleByExpert(View(columns, kWidth), factors).ok());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::size_t slot = i / kWidth, k = i % kWidth;
    const auto token = static_cast<std::size_t>(slots_.tokens[slot]);
    const auto expert = static_cast<std::size_t>(slots_.experts[slot]);
    EXPECT_EQ(columns[i], factors[expert] * x[token * kWidth + k]);
    EXPECT_EQ(rows[i], table[expert * kWidth + k]);
  }
}

// Combine multiplies by the weights, or WeighInputs does so before; factors change the weights.
TEST_F(HostRoutingTest, WeighsInputsOrResults) {
  constexpr std::int64_t kBatch = 6;
  const std::vector<float> factors = Draw(kExperts);
  for (const bool inputs : {false, true}) {
    Route(kBatch, factors);
    std::vector<float> x = Draw(kWidth * kBatch), out(x.size());
    std::vector<float> columns(static_cast<std::size_t>(kWidth * kBatch * kChosen));
    ASSERT_TRUE(routing_.GatherTokens(View(x, kWidth), View(columns, kWidth)).ok());
    if (inputs) {
      ASSERT_TRUE(routing_.WeighInputs(View(columns, kWidth)).ok());
    }
    ASSERT_TRUE(routing_.Combine(View(columns, kWidth), View(out, kWidth)).ok());
    for (std::size_t i = 0; i < out.size(); ++i) {
      float weight = 0.0f;
      for (std::size_t j = i / kWidth * kChosen; j < (i / kWidth + 1) * kChosen; ++j) {
        weight += weights_[j] * factors[static_cast<std::size_t>(choices_[j])];
      }
      EXPECT_NEAR(out[i], weight * x[i], 1e-5f);
    }
  }
}

}  // namespace
}  // namespace kvcache::host_routing_test
