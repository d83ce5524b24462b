// The drafts of a model's own head, for several texts side by side.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <memory>

#include "kvcache/drafter.h"

namespace kvcache {

class Engine;

// REQUIRES: the engine has a draft head, and outlives the result. Throws std::bad_alloc.
std::unique_ptr<BatchDrafter> MakeHeadBatch(Engine& engine);

}  // namespace kvcache
