// The JSON objects that `run --json` and `eval --json` share.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace kvcache::cli {

// How many of a prompt's tokens came from where. What is computed is all there is until
// prefixes are kept.
nlohmann::json ReuseJson(std::int64_t computed);

// Bytes that the cache holds, and what one token takes.
nlohmann::json MemoryJson(Engine& engine);

// One line without control characters; bytes that are not UTF-8 become U+FFFD.
void PrintJson(const nlohmann::json& object);

}  // namespace kvcache::cli
