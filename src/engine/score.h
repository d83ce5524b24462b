// Scores given tokens: how likely the model finds each after those before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "engine/session.h"

namespace kvcache {

struct ScoreResult {
  std::int32_t tokens = 0;  // evaluated, an encoder model's first included
  double nll = 0.0;         // -log p, natural, summed over the tokens after the first
  double perplexity = 0.0;  // exp(nll / (tokens - 1)); 0 for a single token
  double prefill_ms = 0.0;
};

// Is given rows of logits [vocabulary] in order: row i follows token i.
using LogitsSink = std::function<Status(std::span<const float> rows)>;

// Evaluates `tokens` in an empty session, or in one that has let an encoder read a text and is
// empty otherwise: its first token is then the first one scored. Errors: no tokens, more than the
// context, those of the passes and of the sink; kCorrupt for logits that are not numbers;
// kCancelled when interrupted.
Result<ScoreResult> Score(Session& session, Engine& engine, std::span<const std::int32_t> tokens,
                          const LogitsSink& sink = {},
                          const std::atomic<bool>* interrupt = nullptr);

}  // namespace kvcache
