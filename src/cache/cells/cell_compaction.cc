// Compaction. With n used cells, those at or after cell n move, in order, into the holes before it.
//
//   before   a a . b . b c c        moves  {6 → 2}, {7 → 4}
//   after    a a c b c b . .
//
// Sources are used and targets are free, so the moves never overlap. Bytes can be copied while the
// metadata still describes the old cells.
#include <algorithm>
#include <new>
#include <utility>

#include "base/errors.h"
#include "cache/cells/cell_table.h"

namespace kvcache {
namespace {

// Returns the longest part of `run` from its i-th cell on that moves, or stays, in one piece.
HistoryRun PieceOf(const HistoryRun& run, std::int32_t i, std::span<const CellMove> moves) {
  const std::int32_t cell = run.cell + i;
  HistoryRun piece{run.position + i, cell, run.length - i};
  const auto next = std::partition_point(moves.begin(), moves.end(), [&](const CellMove& move) {
    return move.from + move.length <= cell;
  });
  if (next == moves.end()) return piece;
  if (next->from > cell) {
    piece.length = std::min(piece.length, next->from - cell);
  } else {
    piece.cell = next->to + (cell - next->from);
    piece.length = std::min(piece.length, next->from + next->length - cell);
  }
  return piece;
}

// Calls `append` for each piece of the history after the moves, in order.
template <typename Append>
void ForPieces(const RunList& history, std::span<const CellMove> moves, const Append& append) {
  for (const HistoryRun& run : history.runs()) {
    for (std::int32_t i = 0; i < run.length;) {
      const HistoryRun piece = PieceOf(run, i, moves);
      append(piece);
      i += piece.length;
    }
  }
}

bool Moved(const RunList& history, std::span<const CellMove> moves, RunList& result) {
  std::size_t pieces = 0;
  ForPieces(history, moves, [&](const HistoryRun&) { ++pieces; });
  if (!result.Reserve(std::max(pieces, kInitialRuns))) return false;
  ForPieces(history, moves, [&](const HistoryRun& piece) { result.Append(piece); });
  return true;
}

}  // namespace

Result<Compaction> CellTable::PlanCompaction() const {
  Compaction plan;
  try {
    const std::int32_t used = cells() - free_cells();
    std::int32_t hole = free_.NextFrom(0);
    for (std::int32_t cell = used; cell < cells(); ++cell) {
      if (free_.Contains(cell)) continue;
      if (!plan.moves.empty() && plan.moves.back().from + plan.moves.back().length == cell &&
          plan.moves.back().to + plan.moves.back().length == hole) {
        ++plan.moves.back().length;
      } else {
        plan.moves.push_back({cell, hole, 1});
      }
      hole = free_.NextFrom(hole + 1);
    }
    if (plan.moves.empty()) return plan;
    plan.histories.resize(histories_.size());
    std::size_t holds = 0;
    for (const CellHold* hold = holds_.oldest(); hold != nullptr; hold = hold->newer) ++holds;
    plan.holds.resize(holds);
  } catch (const std::bad_alloc&) {
    return OutOfMemory("no memory to compact the cells");
  }
  bool moved = true;
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    moved = moved && Moved(histories_[i], plan.moves, plan.histories[i]);
  }
  std::size_t i = 0;
  for (const CellHold* hold = holds_.oldest(); hold != nullptr; hold = hold->newer) {
    moved = moved && Moved(hold->runs, plan.moves, plan.holds[i++]);
  }
  if (!moved) return OutOfMemory("no memory to compact the cells");
  return plan;
}

void CellTable::Apply(Compaction compaction) {
  if (compaction.moves.empty()) return;
  for (const auto& [from, to, length] : compaction.moves) {
    for (std::int32_t i = 0; i < length; ++i) {
      const std::int32_t count = ref_counts_[from + i];
      ref_counts_.Add(to + i, count);
      ref_counts_.Add(from + i, -count);
      free_.Use(to + i);
      free_.PutBack(from + i);
    }
  }
  histories_ = std::move(compaction.histories);
  std::size_t i = 0;
  for (CellHold* hold = holds_.oldest(); hold != nullptr; hold = hold->newer) {
    hold->runs = std::move(compaction.holds[i++]);
  }
}

}  // namespace kvcache
