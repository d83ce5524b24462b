#include "cache/pass/draft_acceptance.h"

#include <algorithm>

namespace kvcache {
namespace {

bool Overlap(std::int32_t a, std::int32_t b, std::int32_t b_length) {
  return a >= b && a < b + b_length;
}

}  // namespace

void DraftAcceptance::Reset(int max_batch) {
  accepted_.reserve(max_batch);
  moves_.reserve(max_batch);
  calls_.reserve(max_batch);
  cells_.reserve(max_batch);
}

void DraftAcceptance::Clear() {
  accepted_.clear();
  moves_.clear();
  calls_.clear();
}

void DraftAcceptance::Plan(ForwardPass& pass, const CellTable& cells,
                           std::span<const std::int32_t> last) {
  Clear();
  for (const std::int32_t token : last) AcceptPath(pass, cells, token);
  if (!moves_.empty()) calls_.push_back(moves_.size());
}

// The drafts of a sequence have cells c0, c1, … in the order of CellTable::Rank. A path of n tokens
// moves to c0 … c(n-1) if its own cells ascend in that order: token i then moves to c(i), which is
// at or before its cell, and never onto a cell of the path that has yet to move. A path whose cells
// do not ascend stays; this happens only if cells were scarce.
void DraftAcceptance::AcceptPath(ForwardPass& pass, const CellTable& cells, std::int32_t last) {
  Drafts& drafts = pass.drafts();
  const SequenceId sequence = drafts.sequence(last);
  cells_.clear();
  for (std::int32_t i = 0; i < drafts.size(); ++i) {
    if (drafts.sequence(i) == sequence) cells_.push_back(pass.cell_of(i));
  }
  const std::span<const std::int32_t> path = drafts.PathTo(last);
  const Position first = drafts.position(path.front());
  const auto before = [&](std::int32_t a, std::int32_t b) {
    return cells.Rank(sequence, first, a) < cells.Rank(sequence, first, b);
  };
  std::sort(cells_.begin(), cells_.end(), before);
  const bool moves = std::is_sorted(path.begin(), path.end(), [&](std::int32_t a, std::int32_t b) {
    return before(pass.cell_of(a), pass.cell_of(b));
  });
  for (std::size_t i = 0; i < path.size(); ++i) {
    const std::int32_t from = pass.cell_of(path[i]);
    const std::int32_t to = moves ? cells_[i] : from;
    accepted_.push_back({sequence, drafts.position(path[i]), to});
    if (to != from) Move(from, to);
  }
}

// The ranges of one CopyCells call must not overlap. A move that overlaps an earlier one of the
// call starts the next call.
void DraftAcceptance::Move(std::int32_t from, std::int32_t to) {
  const std::size_t first = calls_.empty() ? 0 : calls_.back();
  const bool apart = std::all_of(moves_.begin() + first, moves_.end(), [&](const CellMove& move) {
    return !Overlap(to, move.from, move.length) && !Overlap(from, move.to, move.length);
  });
  if (!apart) calls_.push_back(moves_.size());
  const bool continues = apart && moves_.size() > first &&
                         moves_.back().from + moves_.back().length == from &&
                         moves_.back().to + moves_.back().length == to;
  if (continues) {
    ++moves_.back().length;
  } else {
    moves_.push_back({from, to, 1});
  }
}

Status DraftAcceptance::MoveBytes(KvBackend& backend, const LayerKv& layer) const {
  std::size_t first = 0;
  for (const std::size_t end : calls_) {
    KVCACHE_RETURN_IF_ERROR(
        backend.CopyCells(layer, std::span(moves_).subspan(first, end - first)));
    first = end;
  }
  return Status::Ok();
}

}  // namespace kvcache
