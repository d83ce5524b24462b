#include "backend/cpu/attention/attention_split.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvcache::cpu::attention_split_test {
namespace {

// Positions 10 to 29 in cells 100 to 119, nothing, then 40 to 49 in cells 5 to 14.
const std::vector<HistoryRun> kRuns = {
    {.position = 10, .cell = 100, .length = 20},
    {.position = 40, .cell = 5, .length = 10},
};

TEST(AttentionSplit, TheFirstCellIsThatOfTheFirstKeptPosition) {
  EXPECT_EQ(FirstCell(kRuns, 0), 100);
  EXPECT_EQ(FirstCell(kRuns, 10), 100);
  EXPECT_EQ(FirstCell(kRuns, 29), 119);
  EXPECT_EQ(FirstCell(kRuns, 30), 5);
  EXPECT_EQ(FirstCell(kRuns, 40), 5);
  EXPECT_EQ(FirstCell(kRuns, 49), 14);
}

TEST(AttentionSplit, TheEndCellFollowsTheLastKeptPosition) {
  EXPECT_EQ(EndCell(kRuns, 11), 101);
  EXPECT_EQ(EndCell(kRuns, 30), 120);
  EXPECT_EQ(EndCell(kRuns, 40), 120);
  EXPECT_EQ(EndCell(kRuns, 41), 6);
  EXPECT_EQ(EndCell(kRuns, kEndOfSequence), 15);
}

}  // namespace
}  // namespace kvcache::cpu::attention_split_test
