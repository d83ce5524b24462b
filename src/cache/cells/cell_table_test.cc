#include "cache/cells/cell_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcache::cell_table_test {
namespace {

using Runs = std::vector<HistoryRun>;

constexpr SequenceId kA{0};
constexpr SequenceId kB{1};

CellTable Table(std::int32_t cells, std::int32_t sequences, std::int32_t sequence_stride) {
  CellTable table;
  table.Reset({.cells = cells, .sequences = sequences, .sequence_stride = sequence_stride});
  return table;
}

void Fill(CellTable& table, SequenceId id, Position begin, Position end) {
  for (Position p = begin; p < end; ++p) {
    ASSERT_TRUE(table.Reserve(id, 1));
    table.Claim(id, p);
  }
}

Runs RunsOf(const CellTable& table, SequenceId id) {
  const auto runs = table.history(id).runs();
  return {runs.begin(), runs.end()};
}

// Returns the reference count of each cell, as text: "2210" for cells 0 to 3.
std::string RefCounts(const CellTable& table) {
  std::string text;
  for (std::int32_t cell = 0; cell < table.cells(); ++cell) {
    text += std::to_string(table.ref_count(cell));
    EXPECT_EQ(table.free().Contains(cell), table.ref_count(cell) == 0) << cell;
  }
  return text;
}

TEST(CellTableTest, PlacesAfterThePredecessorElseAtHomeElseNext) {
  CellTable table = Table(12, 3, 4);
  Fill(table, kA, 0, 2);
  Fill(table, kB, 0, 1);
  EXPECT_EQ(RefCounts(table), "110010000000");
  Fill(table, kA, 2, 4);
  EXPECT_EQ(table.Claim(kA, 4), 5);   // 4 is taken, also as the preferred cell; next free is 5
  EXPECT_EQ(table.Claim(kA, 5), 6);   // after its predecessor
  EXPECT_EQ(table.Claim(kB, 7), 11);  // no predecessor: the preferred cell
  EXPECT_EQ(table.Claim(kB, 8), 7);   // preferred: 12 wraps to 0, taken; next free is 7
  EXPECT_EQ(RunsOf(table, kA), (Runs{{0, 0, 4}, {4, 5, 2}}));
  EXPECT_EQ(RunsOf(table, kB), (Runs{{0, 4, 1}, {7, 11, 1}, {8, 7, 1}}));
}

TEST(CellTableTest, FillsHolesWhenNothingElseIsLeft) {
  CellTable table = Table(6, 2, 3);
  Fill(table, kA, 0, 6);
  table.Truncate(kA, 5);
  table.Truncate(kA, 4);
  EXPECT_EQ(table.free_cells(), 2);
  Fill(table, kB, 0, 2);
  EXPECT_EQ(RunsOf(table, kB), (Runs{{0, 4, 2}}));
  EXPECT_EQ(table.free_cells(), 0);
}

TEST(CellTableTest, SharesExactlyThePrefix) {
  CellTable table = Table(8, 2, 4);
  Fill(table, kA, 0, 4);
  Fill(table, kB, 0, 3);
  ASSERT_TRUE(table.Share(kA, kB, 3).ok());
  EXPECT_EQ(RefCounts(table), "22210000");  // B's earlier cells are free
  EXPECT_EQ(RunsOf(table, kB), (Runs{{0, 0, 3}}));
  table.Truncate(kA, 1);
  EXPECT_EQ(RefCounts(table), "21100000");
  ASSERT_TRUE(table.Share(kA, kB, kEndOfSequence).ok());  // everything
  EXPECT_EQ(RefCounts(table), "20000000");
}

TEST(CellTableTest, MiddleRemovalKeepsOwnCellsAndCopiesShared) {
  CellTable table = Table(16, 2, 8);
  Fill(table, kA, 0, 6);
  ASSERT_TRUE(table.Share(kA, kB, 4).ok());
  Fill(table, kB, 4, 6);  // not shared: cells 12 and 13
  auto removal = table.RemoveMiddle(kB, 1, 2);
  ASSERT_TRUE(removal.ok());
  // Positions 2 and 3 were in A's cells 2 and 3; they are now B's 1 and 2, at B's preferred cells.
  EXPECT_EQ(removal->copies, (std::vector<CellMove>{{2, 9, 2}}));
  EXPECT_EQ(removal->shifted, (std::vector<CellRun>{{9, 2}, {12, 2}}));
  EXPECT_EQ(RunsOf(table, kB), (Runs{{0, 0, 1}, {1, 9, 2}, {3, 12, 2}}));
  EXPECT_EQ(RunsOf(table, kA), (Runs{{0, 0, 6}}));
  EXPECT_EQ(RefCounts(table), "2111110001101100");
}

TEST(CellTableTest, MiddleRemovalNeedsACellForEachSharedOne) {
  CellTable table = Table(4, 2, 2);
  Fill(table, kA, 0, 3);
  ASSERT_TRUE(table.Share(kA, kB, 3).ok());
  EXPECT_EQ(table.RemoveMiddle(kB, 0, 1).status().message(),
            "removing a middle range copies 2 shared cells; 1 of 4 cells are free");
  EXPECT_EQ(RefCounts(table), "2220");
  auto removal = table.RemoveMiddle(kB, 0, 2);  // one free cell for one copy
  ASSERT_TRUE(removal.ok());
  EXPECT_EQ(removal->copies, (std::vector<CellMove>{{2, 3, 1}}));
  EXPECT_EQ(RefCounts(table), "1111");
}

TEST(CellTableTest, MiddleRemovalOfOwnCellsNeedsNoRoom) {
  CellTable table = Table(4, 1, 4);
  Fill(table, kA, 0, 4);
  auto removal = table.RemoveMiddle(kA, 1, 2);
  ASSERT_TRUE(removal.ok());
  EXPECT_TRUE(removal->copies.empty());
  EXPECT_EQ(removal->shifted, (std::vector<CellRun>{{2, 2}}));
  EXPECT_EQ(RunsOf(table, kA), (Runs{{0, 0, 1}, {1, 2, 2}}));
  EXPECT_EQ(table.free_cells(), 1);
}

// Neighbouring rings, at all distances: no sequence claims a cell of its neighbour's ring.
TEST(CellTable, RingsStayApart) {
  constexpr std::int32_t kStride = 64, kSequences = 3;
  for (Position apart = 0; apart < kStride; ++apart) {
    CellTable table;
    table.Reset({.cells = kStride * kSequences,
                 .sequences = kSequences,
                 .sequence_stride = kStride,
                 .placement = Placement::kRing});
    for (Position position = 0; position < 3 * kStride; ++position) {
      for (std::int32_t s = 0; s < kSequences; ++s) {
        table.DropBefore(SequenceId{s}, position + apart * s - (kStride - 1));
      }
      for (std::int32_t s = 0; s < kSequences; ++s) {
        Fill(table, SequenceId{s}, position + apart * s, position + apart * s + 1);
      }
      for (std::int32_t s = 0; s < kSequences; ++s) {
        for (const HistoryRun& run : RunsOf(table, SequenceId{s})) {
          ASSERT_EQ(run.cell / kStride, s) << apart << " apart, round " << position;
          ASSERT_EQ((run.cell + run.length - 1) / kStride, s) << apart << " apart";
        }
        ASSERT_LE(RunsOf(table, SequenceId{s}).size(), 2u);
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::cell_table_test
