// The generation loop: evaluates a prompt, then samples tokens and returns their text piece by
// piece.
//
// Thread safety: one thread at a time, the engine's; `interrupt` may be set by any thread or
// signal.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/drafter.h"
#include "kvcache_engine/sampling.h"
#include "kvcache_engine/session.h"

namespace kvcache {

struct GenerateRequest {
  // Token ids, evaluated after the session's; not empty. In an empty session of a model with an
  // encoder, the encoder reads it.
  std::vector<std::int32_t> prompt;
  // The most tokens to generate. -1: until the context is full; else a full context is shifted.
  std::int32_t max_tokens = -1;
  SamplingParams sampling = {};
  std::vector<std::string> stop = {};  // the text ends before the first of these
  // Is called with whole UTF-8 characters as they are generated. When it returns false, generation
  // stops and it is not called again.
  std::function<bool(std::string_view)> on_text = {};
  // Is called after each of the prompt's passes with the number of its tokens that are evaluated.
  std::function<void(std::int32_t)> on_prefill = {};
  const std::atomic<bool>* interrupt = nullptr;  // generation stops once it is true; null: never
  // Proposes tokens, which are verified in one pass; null: none does. The text is the same. A model with
  // an encoder does not use it.
  Drafter* drafter = nullptr;
  int draft_tokens = -1;   // proposed at once, at most 16; -1: what was measured to be the fastest
  int draft_branches = 1;  // alternatives at one place, at most; 1: drafts are a chain
};

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

struct GenerateResult {
  std::string text;
  std::vector<std::int32_t> tokens;  // generated, without an end-of-sequence token
  StopReason stop = StopReason::kLength;
  std::int32_t prompt_tokens = 0;  // of the request
  // Of these, evaluated: all, unless it was interrupted or an encoder's output came from a store.
  std::int32_t computed_tokens = 0;
  std::int32_t shifts = 0;      // how often a full context was shifted
  double prefill_ms = 0.0;      // the prompt's passes
  double first_token_ms = 0.0;  // from the call to the first sampled token
  double decode_ms = 0.0;       // from the first sampled token to the end
  std::int32_t decode_passes = 0;
  std::int32_t decoded_tokens = 0;  // evaluated by those passes, and kept
  SpeculationReport speculation{};
  TextReuse text_reuse{};  // if an encoder reads the prompt

  double PrefillTokensPerSecond() const;
  double DecodeTokensPerSecond() const;  // 0 without a decode pass
};

// Evaluates the prompt in `session` and generates tokens, which it evaluates, too, except an
// end-of-sequence token. Errors: an empty prompt; a prompt longer than the context, with the
// numbers; those of Session::Append and SamplingParams::Check; kCorrupt for logits that are not
// numbers. An interrupt is not an error: what was computed stays in the session.
Result<GenerateResult> Generate(Session& session, Engine& engine, const GenerateRequest& request);

}  // namespace kvcache
