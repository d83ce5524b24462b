// Names a place in a prompt by its line.
//
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvcache_engine/engine.h"

namespace kvcache::server {

// Returns the line of the prompt around a token: at most 64 tokens and 100 bytes on each side, in whole characters.
std::string LineAt(const Engine& engine, std::span<const std::int32_t> tokens, Position at);

}  // namespace kvcache::server
