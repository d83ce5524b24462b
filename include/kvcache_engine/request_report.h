// What a request reports at its end: why it ended, where its prompt came from, and what drafts did.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "kvcache/status.h"
#include "kvcache/store.h"
#include "kvcache/types.h"

namespace kvcache {

enum class StopReason : std::uint8_t {
  kEndOfText,  // the model generated an end-of-sequence token
  kLength,     // max_tokens is reached, or the context is full
  kStopString,
  kInterrupted,  // by *interrupt or on_text
};

// Returns "eos", "length", "stop" or "interrupted".
std::string_view StopReasonName(StopReason reason);

// What drafts did for an answer.
struct SpeculationReport {
  std::int64_t drafted = 0;   // tokens
  std::int64_t accepted = 0;  // of them
  std::int64_t rounds = 0;    // passes with drafts
  Status error;               // of the drafter: the answer went on without it

  // Returns the tokens that a round kept on average: the current one and the accepted drafts.
  double MeanCommitted() const;
};

// Where the tokens of a prompt came from. They sum up to the prompt.
struct ReuseReport {
  Position prompt = 0;
  Position matched = 0;   // known prefix
  Position restored = 0;  // of them, not computed again
  Position stored = 0;    // of these, from the engine's store
  TokensByTier tiers{};   // of these, by tier
  Position computed = 0;
  std::vector<PrefixMiss> missed{};  // why the others were computed
  PrefixDifference
      difference{};  // from the nearest known prompt; keys are tokens, or ids of pictures
  double restore_ms = 0.0;
  double store_ms = 0.0;        // from the question to the store to the last token that it gave
  std::int32_t pictures = 0;    // of the prompt
  std::int32_t tower_runs = 0;  // of these, whose rows a tower computed for this request
  std::string
      store_problem{};      // why something in the store was not used; empty: nothing was refused
  std::int32_t parked = 0;  // how often the request had to make room
  std::int64_t recomputed = 0;  // tokens computed again because of that
};

}  // namespace kvcache
