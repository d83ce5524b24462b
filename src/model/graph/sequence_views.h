// What the rows of a pass see, each of a sequence of its own (kvcache/sequence_view.h).
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/cache.h"
#include "kvcache/sequence_view.h"
#include "kvcache/transaction.h"
#include "kvcache/visibility.h"

namespace kvcache {

class SequenceViews {
 public:
  // Shows each row the first tokens of its sequence, all of them if `window` is 0. Else it shows what the next
  // token of that window sees, without itself. Errors, after which there are no rows: SequenceView::Set's;
  // kOutOfMemory.
  Status Set(const Cache& cache, std::span<const SequenceLength> rows, Position window);
  // Valid until the next Set, or until a call changes the cache.
  Visibility Visible() const;

 private:
  std::vector<SequenceView> views_;                     // at least one per row
  std::vector<std::span<const HistoryRun>> histories_;  // [rows]
  std::vector<Position> positions_;                     // [rows]
  std::vector<std::int32_t> history_of_query_;          // [rows]
  std::vector<std::uint8_t> bidirectional_;             // [rows]: they see all of the view
};

}  // namespace kvcache
