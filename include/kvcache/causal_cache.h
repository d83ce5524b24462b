// Keys and values by position, for full, windowed or chunked attention of any number of sequences.
//
// A query at position 9:
//   window 4                       sees 6 … 9, itself included; after its pass 6 … 9 are kept
//   window 4, retained_tokens 8    sees the same; 2 … 9 are kept, so that one can go back
//   chunk 4                        sees 8 … 9; everything is kept
//
// A cache with a window has max_sequences × retained_tokens + max_batch cells, however long the
// sequences grow. Before a pass claims cells, it evicts the tokens that no query can need.
//
// Thread safety and errors: as in cache.h.
// Design: docs/design/cells.md, docs/design/kinds.md.
#pragma once

#include <memory>
#include <string>

#include "kvcache/cache.h"

namespace kvcache {

struct CausalOptions {
  ShiftKeysFn shift_keys{};  // empty: a middle range cannot be removed
  int window = 0;            // tokens that a query sees, itself included; 0: all
  // Tokens kept of a sequence with a window, counting the one that is written next. The default 0
  // means as many as the window; a smaller number is an error. With several sequences it is raised
  // to at least window + 1, so that one can go back over a stop token while other sequences run. At
  // or above the capacity nothing is evicted.
  int retained_tokens = 0;
  int chunk = 0;  // a query sees no further back than position / chunk × chunk; 0: no limit
  // One line that names what else the keys and values depend on, such as the weights and the RoPE
  // parameters. It becomes a part of the fingerprint: exported snapshots are refused by a cache with
  // another text.
  std::string keys_identity{};
};

// Returns a cache that is not initialised. Init reports contradictory options.
std::unique_ptr<Cache> MakeCausalCache(CausalOptions options = {});

}  // namespace kvcache
