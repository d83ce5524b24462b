// Makes room in a context that is full.
//
// Thread safety: the engine's thread.
#pragma once

#include "engine/scheduler/job.h"
#include "engine/scheduler/job_prefixes.h"

namespace kvcache {

// Returns whether the request's next token has a position. A full context is shifted if the request has a limit of
// tokens: without one it would never end. Its prefix ends there. Errors: those of Cache::Remove.
Result<bool> MakeContext(Engine& engine, JobPrefixes& prefixes, Job& job);

}  // namespace kvcache
