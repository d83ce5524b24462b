// Samples the next token from logits.
//
// The steps, in this order: penalties and biases on the logits; temperature; the `top_k` most likely tokens;
// of these the smallest set whose probabilities sum to `top_p`; of these the tokens at least
// `min_p` times as likely as the most likely; renormalise; draw. Temperature 0 takes the most
// likely token after penalties (of equals the lowest id). A logit that is not a number counts as
// the least likely.
//
// Deterministic: the same seed, parameters and logits draw the same tokens on every machine
// with the same floating-point exp().
//
// Thread safety: one thread at a time. No allocation per token.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

struct LogitBias {
  static constexpr float kForced = 100.0f;
  std::int32_t token = 0;
  float bias = 0.0f;
};

// The parameters of sampling. Their defaults are here; Check (src/engine/request/sampling.cc) has their
// ranges.
struct SamplingParams {
  float temperature = 0.8f;          // >= 0
  std::int32_t top_k = 40;           // 0: all
  float top_p = 0.95f;               // (0, 1]; 1: off
  float min_p = 0.05f;               // [0, 1]; 0: off
  float repeat_penalty = 1.0f;       // > 0; 1: off. Divides positive logits, multiplies negative
  float presence_penalty = 0.0f;     // subtracted once from a token that occurred
  float frequency_penalty = 0.0f;    // subtracted per occurrence
  std::int32_t penalty_window = 64;  // number of last tokens that penalties count; 0: all
  std::uint64_t seed = 0;
  // Added to logits: from kForced on, only such tokens are drawn; up to -kForced, the token never is.
  // Tokens outside of the vocabulary are ignored.
  std::vector<LogitBias> logit_bias{};

  // Returns kInvalidArgument, naming the parameter and its range, if one is out of range.
  Status Check() const;
};

// A token and its probability.
struct Candidate {
  std::int32_t token = 0;
  float probability = 0.0f;
};

class Sampler {
 public:
  // REQUIRES: params.Check().ok().
  explicit Sampler(const SamplingParams& params);

  // Returns the distribution that Sample draws from, most likely first (of equals the lowest id),
  // valid until the next call. `history`: the tokens so far, prompt included.
  std::span<const Candidate> Distribution(std::span<const float> logits,
                                          std::span<const std::int32_t> history);

  // Draws the token that follows `history`. logits: [vocabulary]. Both throw std::bad_alloc, the first
  // time.
  std::int32_t Sample(std::span<const float> logits, std::span<const std::int32_t> history);

 private:
  bool HasPenalties() const;
  void ApplyPenalties(std::span<const std::int32_t> history);
  void ApplyBiases();
  void KeepTopK(std::span<const float> logits, std::size_t k);
  void Normalize();
  void KeepTopPAndMinP();

  SamplingParams params_;
  std::mt19937_64 random_;
  std::vector<float> logits_;          // [vocabulary], after penalties and biases
  std::vector<std::int32_t> counts_;   // [vocabulary], all zero between calls
  std::vector<Candidate> candidates_;  // probability holds the logit until Normalize
};

}  // namespace kvcache
