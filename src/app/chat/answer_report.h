// Reports an answer: one JSON object for scripts, one line for people.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "app/flags/run_flags.h"
#include "kvcache_engine/chat.h"

namespace kvcache::app {

// Returns the object that --json prints for an answer (docs/cli.md).
nlohmann::json AnswerJson(Engine& engine, const RunFlags& flags, const ChatTurn& turn,
                          double load_ms);

// Returns "prompt 1,204 tokens: 1,180 from disk, 24 computed · first token 38 ms · 61 tokens/s".
std::string AnswerSummary(const ChatTurn& turn);

}  // namespace kvcache::app
