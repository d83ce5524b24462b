// What a request must be.
//
// Thread safety: a pure function.
#pragma once

#include "kvcache_engine/scheduler.h"

namespace kvcache {

// Returns kInvalidArgument, with the value and the rule, for a request that the engine cannot answer
// in passes of at most `max_tokens` tokens.
Status CheckRequest(const Engine& engine, const ScheduledRequest& request, int max_tokens);

}  // namespace kvcache
