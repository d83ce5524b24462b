// Stores what a request evaluates in the engine's store, once the store has said what it has of the request's text
// (JobStore::saves). Does nothing before, and nothing for a context that was shifted.
//
// Thread safety: the engine's thread.
#pragma once

#include "engine/persist/prefix_store.h"
#include "engine/scheduler/job.h"

namespace kvcache {

// Stores chunks of the evaluated tokens, in models whose states can be cut.
void SavePieces(Engine& engine, Job& job, PrefixStore::Extent extent);
// Stores a state after `length` tokens, if it is worth its bytes.
void SaveState(Engine& engine, Job& job, const Snapshot& state, Position length);
// Stores the output that the encoder gave for the request's text.
void SaveOutput(Engine& engine, Job& job);

}  // namespace kvcache
