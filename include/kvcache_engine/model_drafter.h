// A drafter (drafter.h) that is a smaller model.
//
//   auto drafter = *MakeModelDrafter(*small, *engine);
//   request.drafter = drafter.get();
//   Generate(session, *engine, request);
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>

#include "kvcache/drafter.h"
#include "kvcache_engine/engine.h"

namespace kvcache {

// Returns a drafter that asks a smaller model with the same vocabulary. `draft` must outlive it, which has
// its sequence 0. Errors: kInvalidArgument if a token differs from `target`'s, with its number.
Result<std::unique_ptr<Drafter>> MakeModelDrafter(Engine& draft, const Engine& target);

}  // namespace kvcache
