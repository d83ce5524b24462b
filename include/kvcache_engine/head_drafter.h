// A drafter (drafter.h) that is a head of the model itself (multi-token prediction): one layer over the
// model's final states, which proposes several tokens for a fraction of a pass.
//
//   auto engine = *Engine::Open(path, {.draft_head = path});       a file with nextn tensors
//   auto drafter = *MakeHeadDrafter(*engine);
//   request.drafter = drafter.get();
//   Generate(session, *engine, request);
//
// The head's keys and values are part of the model's cache: every pass of the model writes those of its
// tokens, and they are kept, given back, forked, paged out, stored and found again with the model's own.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <memory>

#include "kvcache/drafter.h"
#include "kvcache_engine/engine.h"

namespace kvcache {

// Returns a drafter that asks the engine's head. The engine must outlive it. Errors: kNotFound if the engine
// has no head.
Result<std::unique_ptr<Drafter>> MakeHeadDrafter(Engine& engine);

}  // namespace kvcache
