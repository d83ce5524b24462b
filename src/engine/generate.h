// The generation loop: prompt in, text out, piece by piece.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "engine/session.h"

namespace kvcache {

struct GenerateRequest {
  // Evaluated after what the session holds; not empty. An empty session of a model with an encoder
  // lets that read it.
  std::vector<std::int32_t> prompt;
  std::int32_t max_tokens = -1;  // -1: until the context is full; else shifts when it is
  SamplingParams sampling = {};
  std::vector<std::string> stop = {};  // end the text before the first of these
  // Whole UTF-8 characters as they come. Returning false stops the generation: it is not called
  // again.
  std::function<bool(std::string_view)> on_text = {};
  // Is told after each of the prompt's passes how many of its tokens are done.
  std::function<void(std::int32_t)> on_prefill = {};
  const std::atomic<bool>* interrupt = nullptr;  // set by Ctrl-C
};

enum class StopReason : std::uint8_t {
  kEndOfText,  // the model said so
  kLength,     // max_tokens, or the context is full
  kStopString,
  kInterrupted,
};

std::string_view StopReasonName(StopReason reason);  // "eos", "length", "stop", "interrupted"

struct GenerateResult {
  std::string text;
  std::vector<std::int32_t> tokens;  // generated, without an end-of-sequence token
  StopReason stop = StopReason::kLength;
  std::int32_t prompt_tokens = 0;    // of the request
  std::int32_t computed_tokens = 0;  // of them, evaluated: all, unless interrupted before
  std::int32_t shifts = 0;           // how often the context was full
  double prefill_ms = 0.0;           // the prompt's passes
  double first_token_ms = 0.0;       // from the call to the first sampled token
  double decode_ms = 0.0;            // from the first sampled token to the end
  std::int32_t decode_passes = 0;

  double PrefillTokensPerSecond() const;
  double DecodeTokensPerSecond() const;  // 0 without a decode pass
};

// Errors: an empty prompt, a prompt longer than the context (with the numbers), those of
// Session::Append and SamplingParams::Check; kCorrupt for logits that are not numbers. An
// interrupt is not an error: what was computed stays in the session. An end-of-sequence token is
// not evaluated.
Result<GenerateResult> Generate(Session& session, Engine& engine, const GenerateRequest& request);

}  // namespace kvcache
