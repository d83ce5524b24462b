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
  double perplexity = 0.0;  // exp(nll / (tokens - 1)), maybe infinite; 0 for a single token
  double prefill_ms = 0.0;
};

// Is called with rows of logits [vocabulary], in order: row i predicts the token after token i.
using LogitsSink = std::function<Status(std::span<const float> rows)>;

// Where an evaluation lets its state go and takes it back.
struct ScoreResume {
  Position at = 0;  // after so many tokens, the decoder's first token included; 0: never
  std::function<Status()> resume{};
};

// Evaluates `tokens` in an empty session, or in one that holds only the decoder's first token after
// Session::Encode; then the first of `tokens` is scored, too. Tokens that the session lacks after
// `resume` are evaluated again, and scored once. Errors: no tokens; more than the context; a place to resume at
// that is not before the last token; those of the passes, of the sink and of `resume`; kCorrupt for logits
// that are not numbers; kCancelled when interrupted.
Result<ScoreResult> Score(Session& session, Engine& engine, std::span<const std::int32_t> tokens,
                          const LogitsSink& sink = {}, const std::atomic<bool>* interrupt = nullptr,
                          const ScoreResume& resume = {});

}  // namespace kvcache
