// How many drafts a text gets that is alone.
#include "speculation/draft_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace kvcache::lone_draft_plan_test {
namespace {

// A text alone, whose drafter takes no time of its own.
class LonePlan {
 public:
  int Next() {
    std::vector<DraftShare> shares = {{.rates = &rates_, .max = DraftRates::kMax}};
    plan_.Share(shares, 1, 1, DraftRates::kMax);
    return shares.front().drafts;
  }
  void Count(int drafted, int accepted, double seconds) {
    rates_.Count(drafted, accepted);
    plan_.CountPass(1 + drafted, seconds);
  }

 private:
  DraftPlan plan_;
  DraftRates rates_;
};

// Runs rounds with these costs and this acceptance of each draft. Returns the mean of the last depths.
double Settle(LonePlan& depth, double pass, double draft, double acceptance, int rounds = 2000) {
  std::mt19937 random(1);
  double sum = 0.0;
  int counted = 0;
  for (int round = 0; round < rounds; ++round) {
    const int drafted = depth.Next();
    int accepted = 0;
    while (accepted < drafted && static_cast<double>(random() % 1000) < acceptance * 1000) {
      ++accepted;
    }
    const double noise = 0.9 + 0.2 * static_cast<double>(random() % 1000) / 1000;
    depth.Count(drafted, accepted, (pass + draft * drafted) * noise);
    if (round >= rounds / 2) {
      sum += drafted;
      ++counted;
    }
  }
  return sum / counted;
}

TEST(DraftPlanOfOneText, CheapDraftsThatAreRightAreMany) {
  LonePlan depth;
  EXPECT_GT(Settle(depth, 1.0, 0.02, 0.95), 9.0);
}

TEST(DraftPlanOfOneText, DraftsThatAreWrongEnd) {
  LonePlan depth;
  EXPECT_LT(Settle(depth, 1.0, 0.2, 0.05), 0.2);
}

TEST(DraftPlanOfOneText, DraftsThatCostAsMuchAsAPassEnd) {
  LonePlan depth;
  EXPECT_LT(Settle(depth, 1.0, 1.0, 0.8), 0.2);
}

// With a rate of 0.7 and a tenth of a pass for a draft the best is 3: 2.53 tokens for 1.3 passes.
TEST(DraftPlanOfOneText, IsBetweenWhereDraftsAreHalfRight) {
  LonePlan depth;
  const double mean = Settle(depth, 1.0, 0.1, 0.7);
  EXPECT_GT(mean, 1.5);
  EXPECT_LT(mean, 5.5);
}

// A machine with these costs, a text whose drafts are right so often, and what the plan makes of both.
struct Bench {
  double draft = 0.0;  // seconds; a pass takes 1
  double acceptance = 0.0;
  std::mt19937 random;
  LonePlan depth{};

  double Uniform() { return static_cast<double>(random() % 10'000) / 10'000; }
  // Returns tokens per second. `slower`: how much longer a pass takes with and without drafts.
  template <typename Slower>
  double Run(int rounds, Slower&& slower) {
    double tokens = 0.0;
    double seconds = 0.0;
    for (int round = 0; round < rounds; ++round) {
      const int drafted = depth.Next();
      int accepted = 0;
      while (accepted < drafted && Uniform() < acceptance) ++accepted;
      const double took = (1.0 + draft * drafted) * (0.9 + 0.2 * Uniform()) * slower(drafted);
      depth.Count(drafted, accepted, took);
      tokens += accepted + 1;
      seconds += took;
    }
    return tokens / seconds;
  }
  double Best() const {
    double best = 1.0;
    double tokens = 1.0;
    for (int drafted = 1; drafted <= DraftRates::kMax; ++drafted) {
      tokens += std::pow(acceptance, drafted);
      best = std::max(best, tokens / (1.0 + draft * drafted));
    }
    return best;
  }
};

constexpr std::pair<double, double> kCostsAndAcceptances[] = {
    {0.02, 0.95}, {0.1, 0.7}, {0.05, 0.85}, {0.2, 0.6}, {0.2, 0.05}, {1.0, 0.8}, {0.01, 0.98}};

// Nothing that happens in a slow minute, and no smaller number that pays, keeps the best number from being found.
TEST(DraftPlanOfOneText, IsNearTheBestForEverySeed) {
  const auto usual = [](int) { return 1.0; };
  for (const auto& [draft, acceptance] : kCostsAndAcceptances) {
    for (unsigned seed = 0; seed < 40; ++seed) {
      Bench bench{.draft = draft, .acceptance = acceptance, .random = std::mt19937(seed)};
      bench.Run(300, usual);
      EXPECT_GT(bench.Run(4096, usual), 0.9 * bench.Best()) << draft << " " << seed;
      bench.Run(300, [&](int drafted) {
        return (drafted > 0 ? 4.0 : 1.5) * std::exp(2.0 * bench.Uniform() - 1.0);
      });
      EXPECT_GT(bench.Run(4096, usual), 0.9 * bench.Best()) << draft << " " << seed << " slow";
      bench.acceptance = 0.1;
      bench.Run(1000, usual);
      bench.acceptance = acceptance;
      bench.Run(2000, usual);  // the pauses between tries have become long
      EXPECT_GT(bench.Run(4096, usual), 0.9 * bench.Best()) << draft << " " << seed << " hard";
    }
  }
}

// All tries together: one draft more, passes without drafts, and drafts that do not pay.
TEST(DraftPlanOfOneText, TriesTakeAHundredthOfTheTime) {
  const auto usual = [](int) { return 1.0; };
  for (const double draft : {0.02, 0.05, 0.1, 0.2, 0.5}) {
    for (const double acceptance : {1.0, 0.0}) {
      Bench bench{.draft = draft, .acceptance = acceptance, .random = std::mt19937(5)};
      bench.Run(2000, usual);
      EXPECT_GT(bench.Run(20'000, usual), 0.985 * bench.Best()) << draft << " " << acceptance;
    }
  }
}

TEST(DraftPlanOfOneText, NoticesThatDraftsPayAgain) {
  LonePlan depth;
  EXPECT_LT(Settle(depth, 1.0, 0.1, 0.0), 0.2);
  EXPECT_GT(Settle(depth, 1.0, 0.02, 0.95, 6000), 5.0);
}

}  // namespace
}  // namespace kvcache::lone_draft_plan_test
