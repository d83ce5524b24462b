// Keys and values by position, any number of sequences: full, windowed or chunked attention.
//
//   window 4                a query at position 9 sees 6 … 9, itself included
//   window 4, memory 8      it sees the same, and 2 … 5 are kept: one may go back to them
//   chunk 4                 a query at position 9 sees 8 … 9; all is kept
//
// A cache with a window keeps max_sequences × memory + max_batch cells, however long the
// sequences grow: before a pass claims cells it lets go of tokens that no query can need.
//
// Design: docs/design/cells.md, docs/design/kinds.md.
#pragma once

#include <memory>

#include "kvcache/cache.h"

namespace kvcache {

struct CausalOptions {
  ShiftKeysFn shift_keys{};  // empty: a middle range cannot be removed
  int window = 0;            // tokens that a query sees, itself included; 0: all
  // Tokens kept of a sequence with a window; 0: as many as the window. With several sequences
  // one more than the window at least. At or above the capacity: everything is kept.
  int retained_tokens = 0;
  int chunk = 0;  // a query sees no further back than position / chunk × chunk; 0: not chunked
};

// Contradictory options are Init's errors.
std::unique_ptr<Cache> MakeCausalCache(CausalOptions options = {});

}  // namespace kvcache
