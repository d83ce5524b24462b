#include "cache/cells/run_list.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace kvcache::run_list_test {
namespace {

using Runs = std::vector<HistoryRun>;

Runs RunsOf(const RunList& list) {
  return {list.runs().begin(), list.runs().end()};
}

TEST(RunListTest, MergesOnEitherSide) {
  RunList list;
  ASSERT_TRUE(list.Reserve(8));
  list.Insert(0, 10);
  list.Insert(1, 11);  // continues the run
  EXPECT_EQ(RunsOf(list), (Runs{{0, 10, 2}}));
  list.Insert(2, 30);  // another cell
  EXPECT_EQ(RunsOf(list), (Runs{{0, 10, 2}, {2, 30, 1}}));
  list.Insert(5, 33);  // a gap in positions
  EXPECT_EQ(RunsOf(list), (Runs{{0, 10, 2}, {2, 30, 1}, {5, 33, 1}}));
  list.Insert(4, 32);  // joins the run behind it
  EXPECT_EQ(RunsOf(list), (Runs{{0, 10, 2}, {2, 30, 1}, {4, 32, 2}}));
  list.Insert(3, 31);  // joins both neighbours
  EXPECT_EQ(RunsOf(list), (Runs{{0, 10, 2}, {2, 30, 4}}));
  list.Insert(7, 50);
  list.Insert(6, 40);  // joins neither neighbour
  EXPECT_EQ(RunsOf(list), (Runs{{0, 10, 2}, {2, 30, 4}, {6, 40, 1}, {7, 50, 1}}));
  EXPECT_EQ(list.length(), 8);
}

TEST(RunListTest, TruncatesInAndBetweenRuns) {
  const struct {
    Position length;
    Runs expected;
  } kCases[] = {
      {0, {}},
      {1, {{0, 10, 1}}},
      {3, {{0, 10, 3}}},
      {4, {{0, 10, 3}}},  // in the gap
      {5, {{0, 10, 3}}},
      {6, {{0, 10, 3}, {5, 20, 1}}},
      {9, {{0, 10, 3}, {5, 20, 4}}},
      {kEndOfSequence, {{0, 10, 3}, {5, 20, 4}}},
  };
  for (const auto& c : kCases) {
    RunList list;
    ASSERT_TRUE(list.Reserve(2));
    list.Append({0, 10, 3});
    list.Append({5, 20, 4});
    list.Truncate(c.length);
    EXPECT_EQ(RunsOf(list), c.expected) << c.length;
  }
}

TEST(RunListTest, ClipsToRanges) {
  const HistoryRun run{4, 20, 3};  // positions 4, 5, 6
  EXPECT_EQ(Clip(run, 0, kEndOfSequence), run);
  EXPECT_EQ(Clip(run, 5, kEndOfSequence), (HistoryRun{5, 21, 2}));
  EXPECT_EQ(Clip(run, 0, 6), (HistoryRun{4, 20, 2}));
  EXPECT_EQ(Clip(run, 5, 6), (HistoryRun{5, 21, 1}));
  EXPECT_EQ(Clip(run, 0, 4).length, 0);
  EXPECT_EQ(Clip(run, 7, 9).length, 0);
  EXPECT_EQ(Clip(run, kEndOfSequence, kEndOfSequence).length, 0);
}

// Compares every documented property with a map from position to cell.
void ExpectSame(const RunList& list, const std::map<Position, std::int32_t>& expected) {
  std::map<Position, std::int32_t> actual;
  for (std::size_t i = 0; i < list.runs().size(); ++i) {
    const HistoryRun& run = list.runs()[i];
    ASSERT_GT(run.length, 0);
    if (i > 0) {
      ASSERT_GE(run.position, RunList::End(list.runs()[i - 1]));
      ASSERT_FALSE(Continues(list.runs()[i - 1], run)) << "not merged";
    }
    for (int j = 0; j < run.length; ++j) actual[run.position + j] = run.cell + j;
  }
  ASSERT_EQ(actual, expected);
  ASSERT_EQ(list.length(), expected.empty() ? 0 : expected.rbegin()->first + 1);
}

TEST(RunListTest, AgreesWithAMap) {
  std::mt19937 random(11);
  RunList list;
  std::map<Position, std::int32_t> expected;
  for (int step = 0; step < 30000; ++step) {
    const auto position = static_cast<Position>(random() % 40);
    const auto it = expected.find(position);
    ASSERT_EQ(list.CellOf(position), it == expected.end() ? RunList::kNoCell : it->second);
    if (random() % 16 == 0) {
      list.Truncate(position);
      expected.erase(expected.lower_bound(position), expected.end());
    } else if (it == expected.end()) {
      ASSERT_TRUE(list.Reserve(1));
      const auto cell = static_cast<std::int32_t>(position + random() % 2 * 100);
      list.Insert(position, cell);
      expected[position] = cell;
    }
    ExpectSame(list, expected);
  }
}

}  // namespace
}  // namespace kvcache::run_list_test
