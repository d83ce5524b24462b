// Reports an answer: one JSON object for scripts, one line for people.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/flags/run_flags.h"
#include "kvcache/prefix_cache.h"
#include "kvcache/store.h"
#include "kvcache_engine/generate.h"

namespace kvcache::app {

// How much of a prompt was found in the cache.
struct PromptUse {
  std::int32_t kept = 0;    // tokens found in the cache or the store
  std::int32_t stored = 0;  // of these, from the store
  TokensByTier tiers{};     // of these, by tier
  double restore_ms = 0.0;  // that the store took
  std::string
      store_problem{};       // why something in the store was not used; empty: nothing was refused
  std::int32_t dropped = 0;  // tokens in the cache that the prompt does not have
  std::string reason{};      // why tokens were dropped; empty if none were
  std::int32_t matched = 0;  // tokens that any earlier prompt had
  std::vector<PrefixMiss> missed{};  // why the others were computed, new ones too
  PrefixDifference difference{};     // from the nearest earlier prompt
};

// Returns the object that --json prints for an answer (docs/cli.md).
nlohmann::json AnswerJson(Engine& engine, const RunFlags& flags, const GenerateResult& result,
                          const PromptUse& use, double load_ms);

// Returns "prompt 1,204 tokens: 1,180 from disk, 24 computed · first token 38 ms · 61 tokens/s".
std::string AnswerSummary(const GenerateResult& result, const PromptUse& use);

}  // namespace kvcache::app
