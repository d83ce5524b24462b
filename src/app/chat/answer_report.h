// Reports an answer: one JSON object for scripts, one line for people.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "app/flags/run_flags.h"
#include "kvcache_engine/generate.h"

namespace kvcache::app {

// Tokens of the last prompt and answer that the prompt does not have.
struct DroppedTokens {
  std::int32_t tokens = 0;
  std::string reason{};  // empty if none were dropped
};

// Returns the object that --json prints for an answer (docs/cli.md).
nlohmann::json AnswerJson(Engine& engine, const RunFlags& flags, const GenerateResult& result,
                          const DroppedTokens& dropped, double load_ms);

// Returns "prompt 1,204 tokens: 1,180 from disk, 24 computed · first token 38 ms · 61 tokens/s".
std::string AnswerSummary(const GenerateResult& result, const DroppedTokens& dropped);

}  // namespace kvcache::app
