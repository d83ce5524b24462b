#include "kvcache/draft_depth.h"

#include <gtest/gtest.h>

#include <random>

namespace kvcache {
namespace {

// Runs rounds with these costs and this acceptance of each draft. Returns the mean of the last depths.
double Settle(DraftDepth& depth, double pass, double draft, double acceptance, int rounds = 2000) {
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

TEST(DraftDepth, CheapDraftsThatAreRightAreMany) {
  DraftDepth depth;
  EXPECT_GT(Settle(depth, 1.0, 0.02, 0.95), 9.0);
}

TEST(DraftDepth, DraftsThatAreWrongEnd) {
  DraftDepth depth;
  EXPECT_LT(Settle(depth, 1.0, 0.2, 0.05), 0.2);
}

TEST(DraftDepth, DraftsThatCostAsMuchAsAPassEnd) {
  DraftDepth depth;
  EXPECT_LT(Settle(depth, 1.0, 1.0, 0.8), 0.2);
}

// With a rate of 0.7 and a tenth of a pass for a draft the best is 3: 2.53 tokens for 1.3 passes.
TEST(DraftDepth, IsBetweenWhereDraftsAreHalfRight) {
  DraftDepth depth;
  const double mean = Settle(depth, 1.0, 0.1, 0.7);
  EXPECT_GT(mean, 1.5);
  EXPECT_LT(mean, 5.5);
}

TEST(DraftDepth, NoticesThatDraftsPayAgain) {
  DraftDepth depth;
  EXPECT_LT(Settle(depth, 1.0, 0.1, 0.0), 0.2);
  EXPECT_GT(Settle(depth, 1.0, 0.02, 0.95, 6000), 5.0);
}

}  // namespace
}  // namespace kvcache
