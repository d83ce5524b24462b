// How the drafts of a pass are shared.
#include "speculation/draft_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

namespace kvcache::draft_plan_test {
namespace {

// A machine that reads its weights once for each pass and computes 12 rows in that time.
double SecondsOfPass(int tokens) {
  return std::max(1.0, tokens / 12.0);
}

DraftRates RatesOf(double rate) {
  DraftRates rates;
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    int right = 0;
    while (right < DraftRates::kMax && static_cast<double>(random()) < rate * 0x1p32) ++right;
    rates.Count(DraftRates::kMax, right);
  }
  return rates;
}

int Total(const std::vector<DraftShare>& shares) {
  int total = 0;
  for (const DraftShare& share : shares) total += share.drafts;
  return total;
}

// Shares drafts where passes have these costs.
void ShareOnce(std::vector<DraftShare>& shares, int tokens, int certain, int max,
               const PassCosts& costs) {
  DraftPlan plan;
  plan.costs() = costs;
  plan.Share(shares, tokens, certain, max);
}

TEST(PassCosts, AreOnALineThroughWhatWasMeasured) {
  PassCosts costs;
  EXPECT_FALSE(costs.known());
  costs.Count(4, 2.0);
  EXPECT_TRUE(costs.known());
  EXPECT_DOUBLE_EQ(costs.Seconds(4), 2.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(2), 2.0) << "smaller passes are not known to be faster";
  EXPECT_DOUBLE_EQ(costs.Seconds(5), 2.2) << "a token costs a tenth until more is known";
  costs.Count(8, 4.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(6), 3.0);
  EXPECT_DOUBLE_EQ(costs.Seconds(10), 5.0);
  costs.Count(300, 80.0);
  EXPECT_GT(costs.Seconds(200), 40.0);
  EXPECT_LT(costs.Seconds(200), 80.0);
  EXPECT_GE(costs.Seconds(1 << 30), 80.0);
}

// The first pass of all is a prompt's, and slow: it says nothing of a few rows more.
TEST(PassCosts, AFarPassDoesNotMakeTheNextTokensDear) {
  PassCosts costs;
  costs.Count(64, 500.0);
  costs.Count(1, 1.0);
  EXPECT_LE(costs.Seconds(2), 1.2);
  costs.Count(2, 1.3);
  EXPECT_NEAR(costs.Seconds(4), 1.9, 1e-9);
}

TEST(PassCosts, InterruptedPassesChangeLittle) {
  PassCosts costs;
  for (int pass = 0; pass < 100; ++pass) costs.Count(3, pass % 10 == 0 ? 100.0 : 1.0);
  EXPECT_LT(costs.Seconds(3), 1.2);
  for (int pass = 0; pass < 100; ++pass) costs.Count(3, 4.0);
  EXPECT_GT(costs.Seconds(3), 3.9) << "a machine that became slower is noticed";
}

TEST(DraftPlan, ManyTextsGetNoDrafts) {
  PassCosts costs;
  for (int tokens = 1; tokens <= 64; ++tokens) costs.Count(tokens, SecondsOfPass(tokens));
  DraftRates rates = RatesOf(0.7);
  int before = 1000;
  for (const int texts : {1, 2, 4, 8, 16, 32}) {
    std::vector<DraftShare> shares(static_cast<std::size_t>(texts), {.rates = &rates, .max = 16});
    ShareOnce(shares, texts, texts, 256, costs);
    const int each = Total(shares) / texts;
    EXPECT_LE(each, before);
    before = each;
    if (texts == 1) {
      EXPECT_GE(each, 6);
    }
    if (texts >= 12) {
      EXPECT_EQ(Total(shares), 0) << texts;
    }
  }
}

TEST(DraftPlan, TheLikeliestDraftsComeFirst) {
  PassCosts costs;
  for (int tokens = 1; tokens <= 64; ++tokens) costs.Count(tokens, SecondsOfPass(tokens));
  DraftRates good = RatesOf(0.95);
  DraftRates bad = RatesOf(0.1);
  std::vector<DraftShare> shares = {{.rates = &bad, .max = 16}, {.rates = &good, .max = 16}};
  ShareOnce(shares, 2, 2, 7, costs);
  EXPECT_GE(shares[1].drafts, 6);
  EXPECT_LE(Total(shares), 7) << "no more than the pass has room for";
  shares[1].max = 2;
  ShareOnce(shares, 2, 2, 7, costs);
  EXPECT_EQ(shares[1].drafts, 2) << "no more than the text has room for";
}

TEST(DraftPlan, ADrafterThatCostsMuchIsAskedForLess) {
  PassCosts costs;
  for (int tokens = 1; tokens <= 64; ++tokens) costs.Count(tokens, SecondsOfPass(tokens));
  DraftRates free = RatesOf(0.8);
  DraftRates dear = free;
  dear.CountProposal(1, 0.3);
  DraftRates absurd = free;
  absurd.CountProposal(2, 4.0);
  EXPECT_EQ(free.SecondsPerDraft(), 0.0);
  EXPECT_EQ(absurd.SecondsPerDraft(), 2.0);
  std::vector<int> drafts;
  for (DraftRates* rates : {&free, &dear, &absurd}) {
    std::vector<DraftShare> shares = {{.rates = rates, .max = 16}};
    ShareOnce(shares, 1, 1, 64, costs);
    drafts.push_back(Total(shares));
  }
  EXPECT_GT(drafts[0], drafts[1]);
  EXPECT_GT(drafts[1], 0);
  EXPECT_EQ(drafts[2], 0);
}

// Takes the same time for any number of texts, nearly.
class OnePassForAll final : public BatchDrafter {
 public:
  void Propose(std::span<DraftAsk> /*asks*/) override {}
  double Seconds(int texts) const override { return texts == 0 ? 0.0 : 0.15 + 0.01 * texts; }
};

// The first draft of all texts is one pass of the drafter, and so is the second.
TEST(DraftPlan, TextsThatDraftTogetherShareThePasses) {
  PassCosts costs;
  for (int tokens = 1; tokens <= 64; ++tokens) costs.Count(tokens, std::max(1.0, tokens / 32.0));
  DraftRates rates = RatesOf(0.8);
  rates.CountProposal(1, 0.16);  // a text alone
  const OnePassForAll batch;
  for (const int texts : {1, 4, 8}) {
    std::vector<DraftShare> alone(static_cast<std::size_t>(texts), {.rates = &rates, .max = 16});
    std::vector<DraftShare> together(alone.size(), {.rates = &rates, .batch = &batch, .max = 16});
    ShareOnce(alone, texts, texts, 256, costs);
    ShareOnce(together, texts, texts, 256, costs);
    if (texts == 1) {
      EXPECT_EQ(Total(together), Total(alone));
      EXPECT_GT(Total(alone), 0);
    } else {
      EXPECT_GT(Total(together), Total(alone)) << texts;
      EXPECT_GE(Total(together), 2 * texts) << texts;
    }
  }
  // With another batch beside it, each has passes of its own.
  const OnePassForAll other;
  std::vector<DraftShare> both(2, {.rates = &rates, .batch = &batch, .max = 1});
  both[1].batch = &other;
  ShareOnce(both, 2, 2, 256, costs);
  EXPECT_EQ(Total(both), 2);
}

struct Machine {
  double row = 0.06;  // of a pass without drafts
  double noise =
      0.0;  // how much longer passes take beside other programs, which come and go; a few take 25 times that
};

// Runs passes over these texts, whose drafters are new and right with this probability. Returns the committed
// tokens by time, divided by those without drafts.
double Speed(int texts, double right, const Machine& machine, unsigned seed) {
  DraftPlan plan;
  std::vector<DraftRates> rates(static_cast<std::size_t>(texts));
  std::mt19937 random(seed);
  const auto chance = [&] { return static_cast<double>(random()) * 0x1p-32; };
  double seconds = 0.0;
  double tokens = 0.0;
  bool disturbed = false;
  for (int pass = 0; pass < 160; ++pass) {
    std::vector<DraftShare> shares;
    for (DraftRates& each : rates) shares.push_back({.rates = &each, .max = 16});
    plan.Share(shares, texts, texts, 256);
    int drafts = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      int accepted = 0;
      while (accepted < shares[i].drafts && chance() < right) ++accepted;
      rates[i].Count(shares[i].drafts, accepted);
      drafts += shares[i].drafts;
      tokens += 1 + accepted;
    }
    const double time = 1.0 + machine.row * drafts;
    seconds += time;
    if (chance() < 0.025) disturbed = !disturbed;
    const double longer = 0.2 * chance() + (disturbed ? 1.0 : 0.0) + (chance() < 0.01 ? 25.0 : 0.0);
    const double measured = time * (1.0 + machine.noise * longer);
    plan.CountPass(texts + drafts, measured);
  }
  return tokens / (texts * seconds);
}

double MeanSpeed(int texts, double right, const Machine& machine) {
  double sum = 0.0;
  for (unsigned seed = 0; seed < 20; ++seed) sum += Speed(texts, right, machine, seed);
  return sum / 20;
}

// However many texts there are, whose drafters are all new.
TEST(DraftPlan, WrongDraftsCostLittle) {
  for (const int texts : {1, 2, 4, 8}) {
    for (const double row : {0.02, 0.06, 0.12}) {
      EXPECT_GT(MeanSpeed(texts, 0.0, {.row = row}), 0.975) << texts << ", " << row;
      EXPECT_GT(MeanSpeed(texts, 0.0, {.row = row, .noise = 1.0}), 0.965) << texts << ", " << row;
    }
  }
}

TEST(DraftPlan, RightDraftsPayBesideOtherPrograms) {
  for (const double noise : {0.0, 0.3, 1.0}) {
    EXPECT_GT(MeanSpeed(1, 0.8, {.noise = noise}), 2.6) << noise;
    EXPECT_GT(MeanSpeed(8, 0.8, {.noise = noise}), 1.17) << noise;
    EXPECT_GT(MeanSpeed(8, 0.8, {.row = 0.02, .noise = noise}), 1.85) << noise;
    EXPECT_GT(MeanSpeed(8, 0.5, {.row = 0.12, .noise = noise}), 0.96) << noise;
  }
}

// Sizes that were not run since are expected to take longer as well, by half of the factor's octaves: the rest may be
// due to the size.
TEST(PassCosts, FollowThePaceOfTheMachine) {
  PassCosts costs;
  for (int i = 0; i < 50; ++i) {
    costs.Count(8, 1.0);
    costs.Count(12, 1.5);
  }
  for (int i = 0; i < 100; ++i) costs.Count(12, 3.0);
  EXPECT_NEAR(costs.Seconds(12), 3.0, 0.01);
  EXPECT_NEAR(costs.Seconds(8), std::sqrt(2.0), 0.05);
  costs.Count(8, 0.0);  // a clock that stood still
  EXPECT_GT(costs.Seconds(8), 0.5);
}

}  // namespace
}  // namespace kvcache::draft_plan_test
