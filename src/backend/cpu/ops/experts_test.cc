#include "backend/cpu/ops/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/testing.h"
#include "base/arithmetic/activations.h"

namespace kvcache::cpu::experts_test {
namespace {

using testing::ForcedTarget;
using testing::MulAdd;
using testing::RandomValues;

std::unique_ptr<Backend> MakeBackend(int threads) {
  return std::move(MakeCpuBackend({.threads = threads})).value();
}

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

Routed RouteAll(Backend& backend, std::vector<float> logits, std::int64_t tokens,
                const RouterOptions& options) {
  const auto experts = static_cast<std::int64_t>(logits.size()) / tokens;
  const auto places = static_cast<std::size_t>(tokens * options.chosen);
  Routed routed{std::vector<std::int32_t>(places), std::vector<float>(places)};
  const Status status =
      backend.Route(TensorView::Dense(logits.data(), DType::kF32, experts, tokens), options,
                    routed.experts, routed.weights);
  EXPECT_TRUE(status.ok()) << status.message();
  return routed;
}

TEST(RouteTest, TakesTheLargestFirstAndOfEqualOnesTheLowerNumber) {
  const auto backend = MakeBackend(1);
  const Routed routed = RouteAll(*backend, {1.0f, 3.0f, 2.0f, 3.0f, 2.0f, -1.0f}, 1, {.chosen = 4});
  EXPECT_EQ(routed.experts, (std::vector<std::int32_t>{1, 3, 2, 4}));
  EXPECT_EQ(routed.weights[0], routed.weights[1]);
  EXPECT_EQ(routed.weights[2], routed.weights[3]);
  EXPECT_NEAR(routed.weights[0], std::exp(1.0) / (2 * std::exp(1.0) + 2), 1e-7);
}

TEST(RouteTest, WeightsAreSharesOfAllOrOfTheChosen) {
  const auto backend = MakeBackend(1);
  const std::vector<float> logits = {0.5f, -0.25f, 2.0f, 1.0f};
  double all = 0.0;
  for (const float logit : logits) all += std::exp(double{logit});
  const double two = std::exp(2.0) + std::exp(1.0);
  const auto share = [&](RouterOptions::Weights weights, float scale) {
    return RouteAll(*backend, logits, 1, {.chosen = 2, .weights = weights, .scale = scale}).weights;
  };
  const auto of_all = share(RouterOptions::Weights::kGateValues, 1.0f);
  EXPECT_FLOAT_EQ(of_all[0], static_cast<float>(std::exp(2.0) / all));
  EXPECT_FLOAT_EQ(of_all[1], static_cast<float>(std::exp(1.0) / all));
  const auto of_chosen = share(RouterOptions::Weights::kNormalized, 2.5f);
  EXPECT_FLOAT_EQ(of_chosen[0], static_cast<float>(2.5 * std::exp(2.0) / two));
  EXPECT_FLOAT_EQ(of_chosen[1], static_cast<float>(2.5 * std::exp(1.0) / two));
}

TEST(RouteTest, SigmoidsDependOnOneExpertEach) {
  const auto backend = MakeBackend(1);
  const std::vector<float> logits = {0.5f, -0.25f, 2.0f, 1.0f};
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  RouterOptions options{.chosen = 2,
                        .gate = RouterOptions::Gate::kSigmoid,
                        .weights = RouterOptions::Weights::kGateValues,
                        .scale = 2.0f};
  const Routed own = RouteAll(*backend, logits, 1, options);
  EXPECT_EQ(own.experts, (std::vector<std::int32_t>{2, 3}));
  EXPECT_FLOAT_EQ(own.weights[0], static_cast<float>(2.0 * sigmoid(2.0)));
  EXPECT_FLOAT_EQ(own.weights[1], static_cast<float>(2.0 * sigmoid(1.0)));
  options.weights = RouterOptions::Weights::kNormalized;
  const Routed shares = RouteAll(*backend, logits, 1, options);
  EXPECT_FLOAT_EQ(shares.weights[0] + shares.weights[1], 2.0f);
  EXPECT_FLOAT_EQ(shares.weights[0] / shares.weights[1],
                  static_cast<float>(sigmoid(2.0) / sigmoid(1.0)));
}

TEST(RouteTest, ABiasChangesTheChoiceAndNotTheWeights) {
  const auto backend = MakeBackend(1);
  const std::vector<float> logits = {0.5f, -0.25f, 2.0f, 1.0f};
  const std::vector<float> bias = {0.0f, 0.9f, 0.0f, -0.5f};
  for (const auto gate : {RouterOptions::Gate::kSigmoid, RouterOptions::Gate::kSoftmax}) {
    const RouterOptions options{.chosen = 2,
                                .gate = gate,
                                .weights = RouterOptions::Weights::kGateValues,
                                .selection_bias = bias};
    const Routed routed = RouteAll(*backend, logits, 1, options);
    EXPECT_EQ(routed.experts, (std::vector<std::int32_t>{1, 2}));
    RouterOptions all = options;
    all.chosen = 4;
    all.selection_bias = {};
    const Routed unbiased = RouteAll(*backend, logits, 1, all);
    ASSERT_EQ(unbiased.experts, (std::vector<std::int32_t>{2, 3, 0, 1}));
    EXPECT_EQ(routed.weights[0], unbiased.weights[3]);
    EXPECT_EQ(routed.weights[1], unbiased.weights[0]);
  }
}

// There are three groups of three. Group 2 has the best expert, group 0 has the best two experts.
TEST(RouteTest, ExpertsComeFromTheBestGroups) {
  const auto backend = MakeBackend(1);
  const std::vector<float> logits = {1.0f, 1.1f, -9.0f, 0.8f, 0.7f, 0.9f, -9.0f, 2.0f, -9.0f};
  RouterOptions options{
      .chosen = 2, .gate = RouterOptions::Gate::kSigmoid, .groups = 3, .groups_used = 1};
  EXPECT_EQ(RouteAll(*backend, logits, 1, options).experts, (std::vector<std::int32_t>{7, 6}));
  options.group_best = 2;
  EXPECT_EQ(RouteAll(*backend, logits, 1, options).experts, (std::vector<std::int32_t>{1, 0}));
  options.groups_used = 2;
  EXPECT_EQ(RouteAll(*backend, logits, 1, options).experts, (std::vector<std::int32_t>{1, 0}));
  options.chosen = 6;
  EXPECT_EQ(RouteAll(*backend, logits, 1, options).experts,
            (std::vector<std::int32_t>{1, 0, 5, 3, 4, 2}));
}

TEST(RouteTest, BiasesAndGroupsMustFitTheExperts) {
  const auto backend = MakeBackend(1);
  const std::vector<float> three(3);
  const struct {
    RouterOptions options;
    std::int64_t experts;
    const char* message;
  } kCases[] = {
      {{.selection_bias = three},
       4,
       "route: selection_bias has 3 values; must have one for each of 4 experts"},
      {{.groups = 3},
       4,
       "route: groups is 3, groups_used is 1, group_best is 1, chosen is 1; groups must divide "
       "the 4 experts, and the used groups must have the chosen and the best experts"},
      {{.groups = 2, .groups_used = 3},
       4,
       "route: groups is 2, groups_used is 3, group_best is 1, chosen is 1; groups must divide "
       "the 4 experts, and the used groups must have the chosen and the best experts"},
      {{.groups = 2, .group_best = 3},
       4,
       "route: groups is 2, groups_used is 1, group_best is 3, chosen is 1; groups must divide "
       "the 4 experts, and the used groups must have the chosen and the best experts"},
      {{.chosen = 3, .groups = 2},
       4,
       "route: groups is 2, groups_used is 1, group_best is 1, chosen is 3; groups must divide "
       "the 4 experts, and the used groups must have the chosen and the best experts"},
      {{.groups = 2}, 1026, "route: 1026 experts with a bias or groups; must be at most 1024"},
  };
  for (const auto& c : kCases) {
    std::vector<float> logits(static_cast<std::size_t>(c.experts));
    std::vector<std::int32_t> experts(static_cast<std::size_t>(c.options.chosen));
    std::vector<float> weights(experts.size());
    const TensorView view = TensorView::Dense(logits.data(), DType::kF32, c.experts);
    EXPECT_EQ(backend->Route(view, c.options, experts, weights).message(), c.message);
  }
}

// ---- The documented chain, one value at a time

float SumInLanes(const std::vector<float>& values) {
  std::array<float, 16> lanes{};
  for (std::size_t i = 0; i < values.size(); ++i) lanes[i % 16] += values[i];
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

std::vector<float> ChainWeights(const std::vector<float>& logits, const RouterOptions& options,
                                const std::vector<std::int32_t>& chosen) {
  const bool sigmoid = options.gate == RouterOptions::Gate::kSigmoid;
  const float largest = *std::ranges::max_element(logits);
  const auto value = [&](float logit) {
    return sigmoid ? arithmetic::Sigmoid(logit) : arithmetic::Exp(logit - largest);
  };
  std::vector<float> all;
  for (const float logit : logits) all.push_back(value(logit));
  std::vector<float> own;
  for (const std::int32_t expert : chosen) own.push_back(all[static_cast<std::size_t>(expert)]);
  float sum = sigmoid ? 1.0f : SumInLanes(all);
  if (options.weights == RouterOptions::Weights::kNormalized) {
    sum = std::max(SumInLanes(own), 1e-20f);
  }
  for (float& weight : own) weight = weight / sum * options.scale;
  return own;
}

class RouteChainTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Targets, RouteChainTest, ::testing::ValuesIn(CpuTargetNames()),
                         [](const auto& instance) { return instance.param; });

TEST_P(RouteChainTest, WeightsAreTheDocumentedChain) {
  if (GetParam() == "EMU128") return;  // rounds products before sums
  const ForcedTarget forced(GetParam());
  ASSERT_TRUE(forced.ok());
  const auto backend = MakeBackend(1);
  for (const std::int64_t experts : {1, 4, 16, 31, 128, 1000}) {
    for (const int chosen : {1, 4, 17}) {
      if (chosen > experts) continue;
      for (const auto gate : {RouterOptions::Gate::kSoftmax, RouterOptions::Gate::kSigmoid}) {
        for (const auto kind :
             {RouterOptions::Weights::kGateValues, RouterOptions::Weights::kNormalized}) {
          std::vector<float> logits = RandomValues(experts, 7);
          for (float& logit : logits) logit *= 20.0f;
          const RouterOptions options{
              .chosen = chosen, .gate = gate, .weights = kind, .scale = 2.5f};
          const Routed routed = RouteAll(*backend, logits, 1, options);
          const std::vector<float> expected = ChainWeights(logits, options, routed.experts);
          ASSERT_EQ(
              std::memcmp(routed.weights.data(), expected.data(), expected.size() * sizeof(float)),
              0)
              << experts << " experts, " << chosen << " chosen";
        }
      }
    }
  }
}

// A token's result depends on that token only.
TEST(RouteTest, ResultsDependNeitherOnTheBatchNorOnThreads) {
  constexpr std::int64_t kExperts = 37;
  constexpr std::int64_t kTokens = 300;
  const std::vector<float> logits = RandomValues(kExperts * kTokens, 4);
  const RouterOptions options{.chosen = 5};
  const Routed together = RouteAll(*MakeBackend(3), logits, kTokens, options);
  const auto backend = MakeBackend(1);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto begin = logits.begin() + t * kExperts;
    const Routed alone = RouteAll(*backend, {begin, begin + kExperts}, 1, options);
    for (std::size_t i = 0; i < 5; ++i) {
      const std::size_t at = static_cast<std::size_t>(t) * 5 + i;
      ASSERT_EQ(together.experts[at], alone.experts[i]);
      ASSERT_EQ(std::memcmp(&together.weights[at], &alone.weights[i], sizeof(float)), 0);
    }
  }
}

// Broken logits must not lead outside the arrays.
TEST(RouteTest, ChoosesDistinctExpertsWhateverTheLogits) {
  const auto backend = MakeBackend(1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits : {std::vector<float>{nan, nan, nan},
                                           {nan, 1.0f, nan},
                                           {infinity, infinity, -infinity},
                                           {-infinity, -infinity, -infinity}}) {
    const Routed routed = RouteAll(*backend, logits, 1, {.chosen = 3});
    std::vector<std::int32_t> sorted = routed.experts;
    std::ranges::sort(sorted);
    EXPECT_EQ(sorted, (std::vector<std::int32_t>{0, 1, 2}));
  }
}

TEST(RouteTest, MismatchesNameBothSides) {
  const auto backend = MakeBackend(1);
  std::vector<float> logits(12);
  std::vector<std::int32_t> experts(6);
  std::vector<float> weights(6);
  const TensorView view = TensorView::Dense(logits.data(), DType::kF32, 4, 3);
  for (const int chosen : {0, 1, 3, 5}) {
    const Status status = backend->Route(view, {.chosen = chosen}, experts, weights);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "route: chosen is " + std::to_string(chosen) +
                  ", logits are [4, 3], experts has 6 entries and weights has 6; chosen must be at "
                  "least 1 and at most the logits of a token, and each output must have that many "
                  "entries per token");
  }
}

class CombineTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Targets, CombineTest, ::testing::ValuesIn(CpuTargetNames()),
                         [](const auto& instance) { return instance.param; });

TEST_P(CombineTest, IsTheDocumentedChain) {
  const ForcedTarget forced(GetParam());
  ASSERT_TRUE(forced.ok());
  const MulAdd mul_add(GetParam());
  const auto backend = MakeBackend(2);
  for (const std::int64_t width : {1, 15, 16, 100, 3000}) {
    for (const std::size_t parts : {1u, 3u}) {
      constexpr std::size_t kTokens = 21;
      std::vector<float> y = RandomValues(width * 40, 1);
      const std::vector<float> weights =
          RandomValues(static_cast<std::int64_t>(kTokens * parts), 2);
      std::vector<std::int32_t> columns;
      for (std::size_t i = 0; i < kTokens * parts; ++i) {
        columns.push_back(static_cast<std::int32_t>(i * 17 % 40));
      }
      std::vector<float> out(static_cast<std::size_t>(width) * kTokens, -1.0f);
      const Status status =
          backend->Combine(TensorView::Dense(y.data(), DType::kF32, width, 40), columns, weights,
                           TensorView::Dense(out.data(), DType::kF32, width, kTokens));
      ASSERT_TRUE(status.ok()) << status.message();
      for (std::size_t t = 0; t < kTokens; ++t) {
        for (std::int64_t d = 0; d < width; ++d) {
          float expected = 0.0f;
          for (std::size_t i = t * parts; i < (t + 1) * parts; ++i) {
            const float value = y[static_cast<std::size_t>(columns[i] * width + d)];
            expected = i == t * parts ? weights[i] * value : mul_add(weights[i], value, expected);
          }
          const float got = out[t * static_cast<std::size_t>(width) + static_cast<std::size_t>(d)];
          ASSERT_EQ(std::memcmp(&got, &expected, sizeof(float)), 0) << width << ", " << parts;
        }
      }
    }
  }
}

TEST(CombineErrorTest, MismatchesNameBothSides) {
  const auto backend = MakeBackend(1);
  std::vector<float> memory(64);
  const auto view = [&](std::int64_t a, std::int64_t b) {
    return TensorView::Dense(memory.data(), DType::kF32, a, b);
  };
  const std::vector<std::int32_t> columns = {0, 1, 2, 5};
  const std::vector<float> weights(4);
  EXPECT_EQ(backend->Combine(view(4, 5), columns, weights, view(4, 2)).message(),
            "combine: column is 5; must be one of y, [4, 5]");
  EXPECT_EQ(backend->Combine(view(4, 6), columns, weights, view(4, 3)).message(),
            "combine: there are 4 columns and 4 weights, and out is [4, 3]; must be equally many, "
            "a multiple of the columns of out");
  EXPECT_EQ(backend->Combine(view(4, 6), columns, weights, view(3, 2)).message(),
            "combine: y is [4, 6] and out is [3, 2]; must be f32 columns of one width");
}

}  // namespace
}  // namespace kvcache::cpu::experts_test
