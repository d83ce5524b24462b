// Times the decode of several sequences: each pass evaluates one token of each of them.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/engine_impl.h"
#include "machine_limits.h"

namespace kvcache::bench {

struct TogetherOptions {
  int sequences = 4;
  int history = 256;  // tokens of each sequence before the timed ones
  int passes = 32;    // number of timed passes of a round
  int rounds = 1;
  std::function<void()> before_round = [] {};
  Clock clock = Clock::kWall;
};

// Evaluates other tokens of `tokens` for each sequence, then decodes all sequences together. The
// engine must be empty and hold that many sequences of history + rounds * (passes + 1) tokens. Returns the
// milliseconds of each timed pass, with the logits of all sequences. REQUIRES: `tokens` is not
// empty.
Result<std::vector<double>> DecodeTogether(Engine& engine, std::span<const std::int32_t> tokens,
                                           const TogetherOptions& options);

}  // namespace kvcache::bench
