// Checks logits for values that are not numbers.
//
// Thread safety: free function.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache_engine/engine.h"

namespace kvcache {

// Returns kCorrupt, naming the file and the token, if one of `logits` [vocabulary], after `tokens`
// tokens of a sequence, is NaN: otherwise damaged weights would look like a poor model.
Status CheckLogits(const Engine& engine, std::span<const float> logits, std::int32_t tokens);

}  // namespace kvcache
