// Generates a text: submits one request to a scheduler, steps until it is done, and returns its text piece by piece.
//
//   auto scheduler = *Scheduler::Make(*engine, {});
//   auto result = Generate(*scheduler, {.prompt = tokens, .max_tokens = 100, .on_text = …});
//
// A prompt that begins like an earlier one of the scheduler computes only what is new.
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
#include "kvcache_engine/request_report.h"
#include "kvcache_engine/sampling.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache {

struct GenerateRequest {
  std::vector<std::int32_t> prompt;          // token ids, at least one
  std::vector<PromptPicture> pictures = {};  // as in ScheduledRequest
  // The most tokens to generate. -1: until the context is full; else a full context is shifted.
  std::int32_t max_tokens = -1;
  SamplingParams sampling = {};
  std::vector<AdapterUse> adapters = {};  // as in ScheduledRequest
  std::vector<std::string> stop = {};     // the text ends before the first of these
  // Lengths of the prompt where its messages end, ascending: later prompts may continue from there.
  std::vector<Position> restore_points = {};
  // Is called with whole UTF-8 characters as they are generated. When it returns false, generation
  // stops and it is not called again.
  std::function<bool(std::string_view)> on_text = {};
  // Is called after each of the prompt's passes with the number of its tokens that are evaluated or restored.
  std::function<void(std::int32_t)> on_prefill = {};
  // Is called with the logits [vocabulary] that each token is drawn from; `length` tokens were evaluated.
  std::function<void(Position length, std::span<const float> logits)> on_logits = {};
  // Generation stops once it is true, also while the request waits for others; null: never. A pass ends in the middle if
  // it has no other request.
  const std::atomic<bool>* interrupt = nullptr;
  // Proposes tokens, which are verified in one pass; null: none does, or the scheduler's own. The text is the same. A
  // model with an encoder does not use it. It must outlive the call.
  Drafter* drafter = nullptr;
  int draft_tokens = -1;  // proposed at once, at most 16; -1: what was measured to be the fastest
};

struct GenerateResult {
  std::string text;
  std::vector<std::int32_t> tokens;  // generated, without an end-of-sequence token
  StopReason stop = StopReason::kLength;
  std::int32_t prompt_tokens = 0;  // of the request
  // Of these, evaluated: all but restored ones, unless it was interrupted.
  std::int32_t computed_tokens = 0;
  std::int32_t shifts = 0;      // how often a full context was shifted
  double prefill_ms = 0.0;      // the prompt's passes
  double first_token_ms = 0.0;  // from the call to the first sampled token
  double decode_ms = 0.0;       // from the first sampled token to the end
  std::int32_t decode_passes = 0;
  std::int32_t decoded_tokens = 0;  // evaluated by those passes, and kept
  Position evaluated = 0;           // tokens in the sequence at the end, the prompt's included
  SpeculationReport speculation{};
  ReuseReport reuse{};

  double PrefillTokensPerSecond() const;
  double DecodeTokensPerSecond() const;  // 0 without a decode pass
};

// Evaluates the prompt and generates tokens, which it evaluates, too, except an end-of-sequence token. Other requests
// of the scheduler run meanwhile. Errors: an empty stop string; those of Scheduler::Submit; kCorrupt for logits that
// are not numbers; those of passes. An interrupt is not an error: what was computed is a prefix of later prompts. What a
// function of the request throws ends the request and is thrown by this call; the scheduler is as after a cancelled
// request.
Result<GenerateResult> Generate(Scheduler& scheduler, const GenerateRequest& request);

}  // namespace kvcache
