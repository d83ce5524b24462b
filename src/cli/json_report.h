// Makes the JSON objects that `run --json` and `eval --json` share, and prints JSON.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "kvcache_engine/engine.h"

namespace kvcache::cli {

// Returns the "reuse" object of a prompt of which nothing was found in the cache: the number of
// tokens from each source.
nlohmann::json PromptTokensJson(std::int64_t computed);

// Returns the bytes that the cache holds, and the bytes of one token.
nlohmann::json MemoryJson(Engine& engine);

// Prints one line without control characters; bytes that are not UTF-8 become U+FFFD.
void PrintJson(const nlohmann::json& object);

}  // namespace kvcache::cli
