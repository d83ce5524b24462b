// How the drafts of a pass are shared.
#include "speculation/draft_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

namespace kvcache {
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
    while (right < DraftRates::kMost && static_cast<double>(random()) < rate * 0x1p32) ++right;
    rates.Count(DraftRates::kMost, right);
  }
  return rates;
}

int Total(const std::vector<DraftShare>& shares) {
  int total = 0;
  for (const DraftShare& share : shares) total += share.drafts;
  return total;
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

// Where a row costs a tenth of a pass and a draft as much, one token more costs two tenths.
TEST(DraftPlan, ADraftMustBeAsLikelyAsItIsDear) {
  PassCosts costs;
  for (int tokens = 1; tokens <= 20; ++tokens) costs.Count(tokens, 0.9 + 0.1 * tokens);
  DraftRates rates = RatesOf(0.0);
  rates.CountProposal(1, 0.1);
  std::vector<DraftShare> shares = {{.rates = &rates, .most = 16}, {}};
  DraftPlan().Share(shares, 1, 1, 16, costs);
  EXPECT_EQ(shares[0].drafts, 0);
  EXPECT_NEAR(shares[0].least_chance, 0.2, 1e-9) << "of tries as well";
  EXPECT_EQ(shares[1].least_chance, 0.0);
  DraftRates good = RatesOf(0.9);
  good.CountProposal(1, 0.1);
  shares[0] = {.rates = &good, .most = 16};
  DraftPlan().Share(shares, 1, 1, 16, costs);
  EXPECT_GT(shares[0].drafts, 3);
  EXPECT_GT(shares[0].least_chance, 0.25) << "a faster text loses more by a draft";
  EXPECT_LT(shares[0].least_chance, 0.7);
  DraftRates absurd = RatesOf(0.9);
  absurd.CountProposal(1, 1e6);
  shares[0].rates = &absurd;
  DraftPlan().Share(shares, 1, 1, 16, costs);
  EXPECT_EQ(shares[0].least_chance, 0.9) << "what is nearly certain may be tried always";
}

TEST(DraftPlan, ManyTextsGetNoDrafts) {
  PassCosts costs;
  for (int tokens = 1; tokens <= 64; ++tokens) costs.Count(tokens, SecondsOfPass(tokens));
  const DraftRates rates = RatesOf(0.7);
  int before = 1000;
  for (const int texts : {1, 2, 4, 8, 16, 32}) {
    std::vector<DraftShare> shares(static_cast<std::size_t>(texts), {.rates = &rates, .most = 16});
    DraftPlan().Share(shares, texts, texts, 256, costs);
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
  const DraftRates good = RatesOf(0.95);
  const DraftRates bad = RatesOf(0.1);
  std::vector<DraftShare> shares = {{.rates = &bad, .most = 16}, {.rates = &good, .most = 16}};
  DraftPlan().Share(shares, 2, 2, 7, costs);
  EXPECT_GE(shares[1].drafts, 6);
  EXPECT_LE(Total(shares), 7) << "no more than the pass has room for";
  shares[1].most = 2;
  DraftPlan().Share(shares, 2, 2, 7, costs);
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
  for (const DraftRates* rates : {&free, &dear, &absurd}) {
    std::vector<DraftShare> shares = {{.rates = rates, .most = 16}};
    DraftPlan().Share(shares, 1, 1, 64, costs);
    drafts.push_back(Total(shares));
  }
  EXPECT_GT(drafts[0], drafts[1]);
  EXPECT_GT(drafts[1], 0);
  EXPECT_EQ(drafts[2], 0);
}

// A drafter that is always wrong: the drafts of a thousand rounds cost less than three hundredths.
TEST(DraftPlan, WrongDraftsCostLittle) {
  PassCosts costs;
  DraftRates rates;
  DraftPlan plan;
  double seconds = 0.0;
  const int rounds = 1000;
  for (int round = 0; round < rounds; ++round) {
    int drafts = 0;
    if (costs.known()) {
      std::vector<DraftShare> shares = {{.rates = &rates, .most = 16}};
      plan.Share(shares, 1, 1, 64, costs);
      drafts = shares[0].drafts > 0 ? shares[0].drafts : rates.TryAgain();
    }
    const double cost = 1.0 + 0.06 * drafts;
    costs.Count(1 + drafts, cost);
    rates.Count(drafts, 0);
    seconds += cost;
  }
  EXPECT_LT(seconds, 1.01 * rounds);
}

}  // namespace
}  // namespace kvcache
