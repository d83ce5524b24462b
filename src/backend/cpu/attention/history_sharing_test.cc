#include "backend/cpu/attention/history_sharing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace kvcache::cpu::history_sharing_test {
namespace {

using Runs = std::vector<HistoryRun>;

TEST(HistorySharing, EndsWhereCellsDiffer) {
  const Runs a = {{0, 0, 1000}};
  EXPECT_EQ(SharedUntil(a, a), kEndOfSequence);
  EXPECT_EQ(SharedUntil({}, {}), kEndOfSequence);
  EXPECT_EQ(SharedUntil(a, {}), 0);
  EXPECT_EQ(SharedUntil(a, Runs{{0, 5, 1000}}), 0);
  EXPECT_EQ(SharedUntil(a, Runs{{0, 0, 600}}), 600);
  EXPECT_EQ(SharedUntil(a, Runs{{0, 0, 600}, {600, 5000, 400}}), 600);
  EXPECT_EQ(SharedUntil(a, Runs{{1, 1, 999}}), 0);
  EXPECT_EQ(SharedUntil(Runs{{10, 0, 5}}, Runs{{10, 0, 5}, {20, 30, 1}}), 20);
  EXPECT_EQ(SharedUntil(Runs{{10, 0, 5}, {18, 30, 1}}, Runs{{10, 0, 5}, {20, 30, 1}}), 18);
}

TEST(HistorySharing, DoesNotDependOnHowRunsAreCut) {
  EXPECT_EQ(SharedUntil(Runs{{0, 0, 300}, {300, 300, 200}}, Runs{{0, 0, 500}}), kEndOfSequence);
  EXPECT_EQ(SharedUntil(Runs{{0, 0, 300}, {300, 300, 200}}, Runs{{0, 0, 400}, {400, 400, 9}}), 409);
}

// Compares position by position.
Position NaiveSharedUntil(const Runs& a, const Runs& b, std::map<Position, std::int32_t> of[2]) {
  for (int i = 0; i < 2; ++i) {
    of[i].clear();
    for (const HistoryRun& run : i == 0 ? a : b) {
      for (int j = 0; j < run.length; ++j) of[i][run.position + j] = run.cell + j;
    }
  }
  for (Position p = 0; p < 100; ++p) {
    const auto x = of[0].find(p);
    const auto y = of[1].find(p);
    if ((x == of[0].end()) != (y == of[1].end())) return p;
    if (x != of[0].end() && x->second != y->second) return p;
  }
  return kEndOfSequence;
}

Runs RandomRuns(std::mt19937& random) {
  Runs runs;
  Position position = static_cast<Position>(random() % 2);
  while (position < 20 && random() % 6 != 0) {
    const auto length = static_cast<std::int32_t>(1 + random() % 4);
    runs.push_back(
        {position, static_cast<std::int32_t>(position + 50 * (random() % 4 == 0)), length});
    position += length + static_cast<std::int32_t>(random() % 4 == 0);
  }
  return runs;
}

TEST(HistorySharing, EqualsAComparisonOfEveryPosition) {
  std::mt19937 random(1);
  std::map<Position, std::int32_t> of[2];
  for (int i = 0; i < 20000; ++i) {
    const Runs a = RandomRuns(random);
    const Runs b = RandomRuns(random);
    ASSERT_EQ(SharedUntil(a, b), NaiveSharedUntil(a, b, of)) << i;
    ASSERT_EQ(SharedUntil(b, a), SharedUntil(a, b)) << i;
  }
}

// In sorted order, two histories share the shortest prefix that neighbours between them share.
TEST(HistorySharing, OrderPutsTheMostSharedTogether) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::vector<Runs> all(8);
    for (Runs& runs : all) runs = RandomRuns(random);
    std::sort(all.begin(), all.end(), SharingOrder);
    for (std::size_t first = 0; first < all.size(); ++first) {
      Position minimum = kEndOfSequence;
      for (std::size_t last = first + 1; last < all.size(); ++last) {
        minimum = std::min(minimum, SharedUntil(all[last - 1], all[last]));
        ASSERT_EQ(SharedUntil(all[first], all[last]), minimum) << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::cpu::history_sharing_test
