// Refuses logits that are not numbers.
//
// Thread safety: free function.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine.h"

namespace kvcache {

// `logits` [vocabulary] follow `tokens` tokens of a sequence. kCorrupt, naming the file, the token
// and the rule: a model whose weights are damaged must not pass for one that babbles.
Status CheckLogits(const Engine& engine, std::span<const float> logits, std::int32_t tokens);

}  // namespace kvcache
