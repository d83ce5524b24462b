// Scores a given text: the probability of each token after the tokens before it.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "kvcache_engine/session.h"

namespace kvcache {

struct ScoreResult {
  std::int32_t tokens = 0;  // evaluated, with the decoder's first token of an encoder model
  double nll = 0.0;         // -log p, natural, summed over the tokens after the first
  double perplexity = 0.0;  // exp(nll / (tokens - 1)); 0 for a single token
  double prefill_ms = 0.0;
};

// Is called with rows of logits [vocabulary], in order: row i predicts the token after token i.
using LogitsSink = std::function<Status(std::span<const float> rows)>;

// Evaluates `tokens` in an empty session, or in one that holds only the decoder's first token after
// Session::Encode; then the first of `tokens` is scored, too. Errors: no tokens; more than the
// context; those of the passes and of the sink; kCorrupt for logits that are not numbers;
// kCancelled when interrupted.
Result<ScoreResult> Score(Session& session, Engine& engine, std::span<const std::int32_t> tokens,
                          const LogitsSink& sink = {},
                          const std::atomic<bool>* interrupt = nullptr);

}  // namespace kvcache
