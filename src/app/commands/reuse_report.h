// Shows what a replay of a trace reused, beside what simple caches would have reused.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "replay/reuse_replay.h"
#include "replay/trace.h"

namespace kvcache::app {

// Reused tokens of simple caches on the same trace.
struct ReuseBaselines {
  std::int64_t last_prompts = 0;
  std::int64_t least_recently_used = 0;
  std::int64_t optimum = 0;
  std::int64_t unlimited = 0;
};

struct ReuseSummary {
  ReplayReport replay;
  ReuseBaselines baselines;
  std::int64_t budget_tokens = 0;
  bool bounded = false;  // the budget was given
  int slots = 1;
  bool has_model = false;  // tokens were computed: the replay has times
  double seconds = 0.0;    // of the replay
};

// Returns a table for people, which ends with a newline.
std::string ReuseText(const Trace& trace, const ReuseSummary& summary);
// Returns the object that docs/cli.md describes.
nlohmann::json ReuseJson(const Trace& trace, const ReuseSummary& summary);

}  // namespace kvcache::app
