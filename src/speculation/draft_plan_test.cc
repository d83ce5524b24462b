// How the drafts of a pass are shared.
#include "speculation/draft_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
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

// 8 of 64 experts in each of 10 layers. A pass takes the time of its distinct experts.
std::int64_t Experts(int rows) {
  return std::llround(640 * (1.0 - std::pow(1.0 - 8.0 / 64, rows)));
}
double SecondsOfExperts(int rows) {
  return 0.2 + 0.01 * static_cast<double>(Experts(rows)) + 0.005 * rows;
}

TEST(PassLoad, IsRowsOrExperts) {
  PassLoad load;
  EXPECT_EQ(load.Of(5), 5.0);
  load.Count(1, 0);
  EXPECT_EQ(load.Of(5), 5.0);
  load.Count(1, Experts(1));
  EXPECT_EQ(load.Of(1), 1.0);
  EXPECT_GT(load.Of(4), 3.0) << "rows have mostly experts of their own, until more is known";
  load.Count(8, Experts(8));
  for (int rows = 2; rows <= 7; ++rows) {
    const double exact = static_cast<double>(Experts(rows)) / static_cast<double>(Experts(1));
    EXPECT_NEAR(load.Of(rows), exact + (rows - 1) / 16.0, 0.12 * exact) << rows;
  }
  for (int rows = 1; rows < 500; ++rows) EXPECT_GT(load.Of(rows + 1), load.Of(rows));
}

TEST(PassCosts, OfExpertsAreBetweenWhatWasMeasured) {
  PassCosts costs;
  costs.Count(1, SecondsOfExperts(1), Experts(1));
  EXPECT_GT(costs.Seconds(2), 1.3 * costs.Seconds(1)) << "a row has experts of its own";
  costs.Count(9, SecondsOfExperts(9), Experts(9));
  for (const int rows : {2, 3, 4, 6}) {
    EXPECT_NEAR(costs.Seconds(rows), SecondsOfExperts(rows), 0.12 * SecondsOfExperts(rows));
    // What a line through the rows would say is too little by more.
    const double line =
        SecondsOfExperts(1) + (SecondsOfExperts(9) - SecondsOfExperts(1)) * (rows - 1) / 8;
    EXPECT_GT(SecondsOfExperts(rows) - line,
              std::abs(SecondsOfExperts(rows) - costs.Seconds(rows)));
  }
}

// Drafts that are half right pay for a dense model. Each row of a mixture of experts reads nearly as much as
// the first, so they do not pay, also when only a pass without drafts and one with many were measured.
TEST(DraftPlan, ExpertsMakeDraftsDear) {
  const DraftRates rates = RatesOf(0.5);
  for (const bool experts : {false, true}) {
    PassCosts costs;
    for (const int tokens : {1, 9}) {
      costs.Count(tokens, experts ? SecondsOfExperts(tokens) : SecondsOfPass(tokens),
                  experts ? Experts(tokens) : 0);
    }
    std::vector<DraftShare> shares = {{.rates = &rates, .most = 16}};
    DraftPlan().Share(shares, 1, 1, 64, costs);
    if (experts) {
      EXPECT_EQ(Total(shares), 0);
    } else {
      EXPECT_GT(Total(shares), 1);
    }
  }
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

// Eight texts whose drafters are right with these probabilities, on a machine where a row more costs an eighth
// of the pass. Returns the tokens per second as a multiple of those without drafts.
double TimesPlain(std::span<const double> right, int rounds) {
  constexpr double kRow = 0.02;
  PassCosts costs;
  DraftPlan plan;
  std::mt19937 random(5);
  std::vector<DraftRates> rates(right.size());
  const auto texts = static_cast<int>(right.size());
  const double plain = 1.0 + kRow * texts;
  double seconds = 0.0;
  double tokens = 0.0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<DraftShare> shares(right.size());
    for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = {.most = 16, .own = &rates[i]};
    if (costs.known()) plan.Plan(shares, texts, texts, 256, costs);
    const double cost = plain + kRow * Total(shares);
    seconds += cost;
    costs.Count(texts + Total(shares), cost);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      int accepted = 0;
      while (accepted < shares[i].drafts && static_cast<double>(random()) < right[i] * 0x1p32) {
        ++accepted;
      }
      tokens += 1 + accepted;
      if (shares[i].drafts > 0) plan.Count(rates[i], shares[i].drafts, accepted, shares[i].tries);
    }
  }
  return tokens / seconds / (texts / plain);
}

TEST(DraftPlan, WrongDraftsOfManyTextsCostLittle) {
  const std::vector<double> wrong(8, 0.0);
  EXPECT_GT(TimesPlain(wrong, 160), 0.98);
  EXPECT_GT(TimesPlain(wrong, 1000), 0.995);
}

// One good drafter among seven that are always wrong finds its way, and so do eight good ones.
TEST(DraftPlan, GoodDraftersAreFound) {
  std::vector<double> right(8, 0.0);
  const double none = TimesPlain(right, 1000);
  right[5] = 0.95;
  EXPECT_GT(TimesPlain(right, 1000), none + 0.05);
  EXPECT_GT(TimesPlain(std::vector<double>(8, 0.9), 1000), 2.0);
}

}  // namespace
}  // namespace kvcache
