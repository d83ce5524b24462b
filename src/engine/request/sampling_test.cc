#include "kvcache_engine/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::sampling_test {
namespace {

SamplingParams Plain() {
  return {.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .penalty_window = 0};
}

std::vector<Candidate> DistributionOf(const SamplingParams& params, std::vector<float> logits,
                                      std::vector<std::int32_t> history = {}) {
  Sampler sampler(params);
  const auto d = sampler.Distribution(logits, history);
  return {d.begin(), d.end()};
}

std::vector<std::int32_t> TokensOf(const std::vector<Candidate>& candidates) {
  std::vector<std::int32_t> tokens;
  for (const Candidate& c : candidates) tokens.push_back(c.token);
  return tokens;
}

// Logits whose probabilities at temperature 1 are 0.1, 0.4, 0.2, 0.3.
const std::vector<float> kLogits = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)};

TEST(Sampler, PlainDistributionIsTheSoftmaxSorted) {
  const auto d = DistributionOf(Plain(), kLogits);
  EXPECT_EQ(TokensOf(d), (std::vector<std::int32_t>{1, 3, 2, 0}));
  const float expected[] = {0.4f, 0.3f, 0.2f, 0.1f};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(d[i].probability, expected[i], 1e-6f);
}

TEST(Sampler, FiltersKeepWhatTheyPromise) {
  struct Case {
    std::string name;
    std::int32_t top_k;
    float top_p, min_p;
    std::vector<std::int32_t> kept;
  };
  const Case cases[] = {
      {"top-k", 2, 1.0f, 0.0f, {1, 3}},
      {"top-k above the vocabulary", 9, 1.0f, 0.0f, {1, 3, 2, 0}},
      {"top-p inside the first", 0, 0.1f, 0.0f, {1}},
      {"top-p needs two", 0, 0.5f, 0.0f, {1, 3}},
      {"min-p drops below 0.6 of the best", 0, 1.0f, 0.6f, {1, 3}},
      {"min-p 1 keeps the best", 0, 1.0f, 1.0f, {1}},
      {"all together", 3, 0.9f, 0.3f, {1, 3, 2}},
  };
  for (const Case& c : cases) {
    SamplingParams params = Plain();
    params.top_k = c.top_k;
    params.top_p = c.top_p;
    params.min_p = c.min_p;
    const auto d = DistributionOf(params, kLogits);
    EXPECT_EQ(TokensOf(d), c.kept) << c.name;
    double sum = 0.0;
    for (const Candidate& each : d) sum += each.probability;
    EXPECT_NEAR(sum, 1.0, 1e-6) << c.name;
  }
}

TEST(Sampler, TemperatureSharpensAndZeroTakesTheBest) {
  SamplingParams params = Plain();
  params.temperature = 0.5f;  // squares the odds
  EXPECT_NEAR(DistributionOf(params, kLogits)[0].probability, 16.0f / 30.0f, 1e-6f);
  params.temperature = 0.0f;
  EXPECT_EQ(TokensOf(DistributionOf(params, kLogits)), std::vector<std::int32_t>{1});
  EXPECT_EQ(TokensOf(DistributionOf(params, {2.0f, 5.0f, 5.0f})), std::vector<std::int32_t>{1});
}

// The cells of a picture have ids below 0. They fill places of the window like all tokens.
TEST(Sampler, PenaltiesPassOverIdsWithoutALogit) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  SamplingParams params = Plain();
  params.repeat_penalty = 1.5f;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.25f;
  const auto expect_same = [&](std::vector<std::int32_t> history,
                               std::vector<std::int32_t> tokens) {
    const auto seen = DistributionOf(params, kLogits, std::move(history));
    const auto expected = DistributionOf(params, kLogits, std::move(tokens));
    ASSERT_EQ(TokensOf(seen), TokensOf(expected));
    for (std::size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i].probability, expected[i].probability);
    }
  };
  expect_same({kLeast, 1, -2, 4, 1, -1, kMost}, {1, 1});
  params.penalty_window = 2;
  expect_same({1, kLeast, kLeast}, {});
}

TEST(Sampler, Penalties) {
  SamplingParams params = Plain();
  params.temperature = 0.0f;
  params.repeat_penalty = 4.0f;
  EXPECT_EQ(TokensOf(DistributionOf(params, {1.0f, 3.0f}, {1}))[0], 0) << "3 / 4 < 1";
  EXPECT_EQ(TokensOf(DistributionOf(params, {-3.0f, -1.0f}, {1}))[0], 0) << "-1 × 4 < -3";
  params = Plain();
  params.temperature = 0.0f;
  params.presence_penalty = 1.5f;
  EXPECT_EQ(TokensOf(DistributionOf(params, {2.0f, 3.0f}, {1, 1, 1}))[0], 0);
  params.presence_penalty = 0.0f;
  params.frequency_penalty = 0.4f;
  EXPECT_EQ(TokensOf(DistributionOf(params, {2.0f, 3.0f}, {1, 1}))[0], 1) << "3 - 0.8 > 2";
  EXPECT_EQ(TokensOf(DistributionOf(params, {2.0f, 3.0f}, {1, 1, 1}))[0], 0) << "3 - 1.2 < 2";
  params.penalty_window = 2;
  EXPECT_EQ(TokensOf(DistributionOf(params, {2.0f, 3.0f}, {1, 1, 1}))[0], 1) << "two are looked at";
}

TEST(Sampler, Biases) {
  SamplingParams params = Plain();
  params.logit_bias = {{.token = 0, .bias = std::log(4.0f)}, {.token = 9, .bias = 5.0f}};
  EXPECT_NEAR(DistributionOf(params, kLogits)[1].probability, 4.0f / 13.0f, 1e-6f);
  params.logit_bias = {{.token = 1, .bias = -100.0f}, {.token = -1, .bias = 5.0f}};
  const auto banned = DistributionOf(params, kLogits);
  EXPECT_EQ(TokensOf(banned), (std::vector<std::int32_t>{3, 2, 0, 1}));
  EXPECT_EQ(banned.back().probability, 0.0f);
  params.logit_bias = {{.token = 0, .bias = 100.0f}};
  EXPECT_EQ(DistributionOf(params, {0.0f, 900.0f})[0].token, 0);
  EXPECT_EQ(DistributionOf(params, {0.0f, 900.0f})[0].probability, 1.0f);
  params.temperature = 0.0f;
  EXPECT_EQ(DistributionOf(params, kLogits)[0].token, 0);
}

TEST(Sampler, SameSeedSameTokensAndTheDistributionIsDrawn) {
  SamplingParams params = Plain();
  params.seed = 7;
  constexpr int kDraws = 20000;
  std::vector<std::int32_t> first, second;
  Sampler a(params), b(params);
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) {
    first.push_back(a.Sample(kLogits, {}));
    second.push_back(b.Sample(kLogits, {}));
    ++counts[first.back()];
  }
  EXPECT_EQ(first, second);
  const double expected[] = {0.1, 0.4, 0.2, 0.3};
  for (int t = 0; t < 4; ++t) {  // five standard deviations
    EXPECT_NEAR(counts[t] / double{kDraws}, expected[t], 5 * std::sqrt(0.25 / kDraws));
  }
}

TEST(Sampler, LogitsThatAreNoFiniteNumbers) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  struct Case {
    std::string name;
    std::vector<float> logits;
    std::vector<std::int32_t> order;
    std::vector<float> probabilities;
  };
  const Case cases[] = {
      {"nan", {kNan, 1.0f, kNan, 1.0f}, {1, 3, 0, 2}, {0.5f, 0.5f, 0.0f, 0.0f}},
      {"nan first", {kNan, -3.0f}, {1, 0}, {1.0f, 0.0f}},
      {"infinite", {0.0f, kInf, kNan, kInf}, {1, 3, 0, 2}, {0.5f, 0.5f, 0.0f, 0.0f}},
      {"hidden", {-kInf, 0.0f}, {1, 0}, {1.0f, 0.0f}},
      {"nothing else", {kNan, -kInf}, {0, 1}, {0.5f, 0.5f}},
  };
  for (const Case& c : cases) {
    const auto d = DistributionOf(Plain(), c.logits);
    EXPECT_EQ(TokensOf(d), c.order) << c.name;
    for (std::size_t i = 0; i < d.size(); ++i) {
      EXPECT_EQ(d[i].probability, c.probabilities[i]) << c.name << " " << i;
    }
    SamplingParams greedy = Plain();
    greedy.temperature = 0.0f;
    EXPECT_EQ(DistributionOf(greedy, c.logits)[0].token, c.order[0]) << c.name;
  }
}

TEST(Sampler, WhatIsImpossibleIsNeverDrawn) {
  std::vector<float> logits(4, -std::numeric_limits<float>::infinity());
  logits[1] = logits[2] = 0.0f;
  Sampler sampler(Plain());
  for (int i = 0; i < 1000; ++i) {
    const std::int32_t token = sampler.Sample(logits, {});
    EXPECT_TRUE(token == 1 || token == 2) << token;
  }
}

TEST(Sampler, TemperaturesNearZeroTakeTheBest) {
  SamplingParams params = Plain();
  params.temperature = 1e-40f;  // its inverse is infinite
  const auto d = DistributionOf(params, {1.0f, 3.0f, 2.0f});
  EXPECT_EQ(d[0].token, 1);
  EXPECT_EQ(d[0].probability, 1.0f);
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  const auto check = [](auto change, const std::string& name) {
    SamplingParams params;
    change(params);
    const Status status = params.Check();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  check([&](auto& p) { p.temperature = -1.0f; }, "temperature");
  check([&](auto& p) { p.temperature = nan; }, "temperature");
  check([&](auto& p) { p.top_k = -1; }, "top-k");
  check([&](auto& p) { p.top_p = 0.0f; }, "top-p");
  check([&](auto& p) { p.top_p = 1.5f; }, "top-p");
  check([&](auto& p) { p.min_p = -0.1f; }, "min-p");
  check([&](auto& p) { p.repeat_penalty = 0.0f; }, "repeat penalty");
  check([&](auto& p) { p.presence_penalty = nan; }, "presence penalty");
  check([&](auto& p) { p.frequency_penalty = nan; }, "frequency penalty");
  check([&](auto& p) { p.penalty_window = -1; }, "penalty window");
  EXPECT_TRUE(SamplingParams{}.Check().ok());
}

}  // namespace
}  // namespace kvcache::sampling_test
