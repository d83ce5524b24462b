// What simple caches reuse of a trace, for comparison.
//
// They count whole blocks from the beginning of the prompt. A partial last block counts with its
// tokens if its id is cached. Requests run one after another in the trace's order.
//
// Thread safety: pure functions. They may throw std::bad_alloc.
#pragma once

#include <cstdint>

#include "replay/trace.h"

namespace kvcache {

// Returns the reused tokens of a cache that has each slot's last prompt and no more. A request takes
// the slot that shares the longest prefix with it, if that is at least a tenth of its prompt, and else
// the least recently used slot. Slots have no limit of length. REQUIRES: slots >= 1.
std::int64_t ReusedByLastPrompts(const Trace& trace, int slots);

// An unlimited cache of blocks: no cache of prefixes reuses more.
struct UnlimitedReuse {
  std::int64_t reused_tokens = 0;
  std::int64_t held_tokens = 0;  // at the end, with answers
};
UnlimitedReuse ReusedByUnlimited(const Trace& trace);

// Returns the reused tokens of a cache of blocks that holds at most `budget` tokens after each request,
// with answers, and lets go of the block that was least recently used. The end of a text goes first.
std::int64_t ReusedByLeastRecentlyUsed(const Trace& trace, std::int64_t budget);

// Returns the same for a cache that lets go of the block whose next use is furthest away (Belady). It
// knows the future, so no real cache reuses as much. Answers go at once, because they have no next use.
std::int64_t ReusedByOptimum(const Trace& trace, std::int64_t budget);

}  // namespace kvcache
