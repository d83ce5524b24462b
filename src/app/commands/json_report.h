// Makes the JSON objects that `run --json` and `eval --json` share, and prints JSON.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kvcache_engine/engine.h"

namespace kvcache::app {

// Returns the "reuse" object of a text of which `restored` tokens came from the tier of that name.
nlohmann::json PromptTokensJson(std::int64_t computed, std::int64_t restored = 0,
                                const std::string& tier = "live");

// Returns the bytes that the cache holds, and the bytes of one token.
nlohmann::json MemoryJson(Engine& engine);

// Prints one line without control characters; bytes that are not UTF-8 become U+FFFD.
void PrintJson(const nlohmann::json& object);

}  // namespace kvcache::app
