#include "cache/pass/history_mask.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/cache_harness.h"

namespace kvcache::history_mask_test {
namespace {

using Rows = std::vector<std::string>;

// One sequence: positions 0 to 4 in cells 2 to 6, positions 5 to 7 in cells 9 to 11.
const std::vector<HistoryRun> kRuns = {{0, 2, 5}, {5, 9, 3}};

struct Case {
  std::string name;
  std::vector<Position> positions;
  std::vector<std::uint8_t> bidirectional;
  std::int32_t window;
  std::int32_t chunk;
  std::int32_t padding;
  CellRun cells;
  Rows mask;
};

class HistoryMaskTest : public ::testing::TestWithParam<Case> {};

TEST_P(HistoryMaskTest, IsAsWorkedOutByHand) {
  const Case& c = GetParam();
  const std::vector<std::int32_t> index(c.positions.size(), 0);
  const std::vector<std::span<const HistoryRun>> histories = {kRuns};
  Visibility visibility{.positions = c.positions,
                        .history_of_query = index,
                        .histories = histories,
                        .bidirectional = c.bidirectional,
                        .window = c.window,
                        .chunk = c.chunk};
  const CellRun cells = VisibleCells(visibility, c.padding);
  EXPECT_EQ(cells, c.cells);
  for (const DType type : {DType::kF32, DType::kF16}) {
    HistoryMask mask;
    ASSERT_TRUE(mask.Build(visibility, cells, static_cast<std::int64_t>(c.mask.size()), type).ok());
    EXPECT_EQ(mask.view().dtype, type);
    EXPECT_EQ(testing::MaskRows(mask.view()), c.mask);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, HistoryMaskTest,
    ::testing::Values(
        //                                                      cells:  2 3 4 5 6 7 8 9 . .
        Case{"causal", {4, 6}, {}, 0, 0, 1, {2, 9}, {"00000....", "00000..00"}},
        Case{"first", {0}, {}, 0, 0, 1, {2, 1}, {"0"}},
        Case{"window", {4, 6}, {}, 3, 0, 1, {4, 7}, {"000....", "..0..00"}},
        Case{"window_of_one", {5}, {}, 1, 0, 1, {9, 1}, {"0"}},
        Case{"window_wider_than_history", {7}, {}, 99, 0, 1, {2, 10}, {"00000..000"}},
        Case{"chunk", {3, 4, 6}, {}, 0, 4, 1, {2, 9}, {"0000.....", "....0....", "....0..00"}},
        Case{"chunk_begins", {4}, {}, 0, 4, 1, {6, 1}, {"0"}},
        Case{"window_in_chunk", {6}, {}, 2, 4, 1, {9, 2}, {"00"}},
        Case{"bidirectional", {1, 2}, {1, 0}, 0, 0, 1, {2, 10}, {"00000..000", "000......."}},
        Case{"bidirectional_window", {4}, {1}, 2, 0, 1, {5, 7}, {"00..000"}},
        Case{"padded", {4}, {}, 0, 0, 4, {0, 8}, {"..00000.", "........"}},
        Case{"padded_both_ends", {6}, {}, 3, 0, 4, {4, 8}, {"..0..00."}}),
    [](const ::testing::TestParamInfo<Case>& test) { return test.param.name; });

TEST(HistoryMaskTest, SequencesDoNotSeeEachOther) {
  const std::vector<HistoryRun> a = {{0, 0, 2}};
  const std::vector<HistoryRun> b = {{0, 0, 1}, {1, 3, 1}};  // shares cell 0 with a
  const std::vector<std::span<const HistoryRun>> histories = {a, b};
  const std::vector<Position> positions = {1, 1};
  const std::vector<std::int32_t> index = {1, 0};
  Visibility visibility{.positions = positions, .history_of_query = index, .histories = histories};
  const CellRun cells = VisibleCells(visibility, 1);
  HistoryMask mask;
  ASSERT_TRUE(mask.Build(visibility, cells, 2, DType::kF32).ok());
  EXPECT_EQ(testing::MaskRows(mask.view()), (Rows{"0..0", "00.."}));
}

TEST(HistoryMaskTest, NothingSeenIsNothing) {
  EXPECT_EQ(VisibleCells({}, 4), CellRun{});
}

}  // namespace
}  // namespace kvcache::history_mask_test
