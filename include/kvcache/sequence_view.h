// A read-only view of one sequence's keys and values, for a model that attends over another model's
// cache: a draft model without a cache of its own.
//
//   target->SetLayer(layer);                                   the layer that the draft reads
//   SequenceView view;
//   view.Set(*target, sequence, 0, length);                    all tokens
//   view.Set(*target, sequence, std::max(0, length - window + 1), length);
//                                              what the next token of a window sees, without itself
//   backend.Attention(*target->Storage(), q, *view.Visible(1), options, out);
//
// Every query sees all positions of the view, in order of position, wherever their cells lie. The
// result has the bits of a query of the target that sees the same positions.
//
// A view copies no keys or values and holds no cell. It is valid until a call changes the cache.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache {

class SequenceView {
 public:
  // Shows positions [begin, end) of the sequence. In a wrapper they are those of the inner cache
  // that SetLayer or SetLayerType selected. Errors, after which the view is empty:
  //   kInvalidArgument  The sequence is unknown, or the range is reversed or ends past the sequence.
  //   kUnsupported      The cache no longer has all of these positions, or it is an encoder cache.
  //   kOutOfMemory      There is no memory for the list of runs.
  Status Set(const Cache& cache, SequenceId sequence, Position begin, Position end);

  // The cells of the positions, ascending by position.
  std::span<const HistoryRun> runs() const { return runs_; }

  // Returns what each of `queries` queries sees: all of the view. Valid until the next call of Set or
  // Visible, and while the view is not moved. Errors: kInvalidArgument for fewer than one query;
  // kOutOfMemory.
  Result<Visibility> Visible(int queries);

 private:
  Position end_ = 0;
  std::vector<HistoryRun> runs_;
  std::span<const HistoryRun> history_;
  std::vector<Position> positions_;
  std::vector<std::int32_t> history_of_query_;
  std::vector<std::uint8_t> bidirectional_;
};

}  // namespace kvcache
