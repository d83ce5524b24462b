// Makes traces of conversations, for tests and for a quick look without a file.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "replay/trace.h"

namespace kvcache {

// Returns `requests` requests of twelve conversations that take turns: each prompt repeats the whole
// blocks of the last one of its conversation, and some prompts come twice. All begin with the same
// block. A seed always gives the same trace. REQUIRES: requests >= 0, block_size >= 1.
Trace MakeSampleTrace(std::uint32_t seed, int requests, int block_size);

}  // namespace kvcache
