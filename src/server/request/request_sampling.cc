#include "server/request/request_sampling.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

namespace kvcache::server {
namespace {

constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();

// Parameters of other servers that change which tokens the prompt or the text has.
void RefuseOtherTexts(Fields& fields) {
  fields.RefuseUnless("truncate_prompt_tokens", {-1});
  for (const char* const name :
       {"include_stop_str_in_output", "no_stop_trim", "return_tokens_as_token_ids"}) {
    fields.RefuseUnless(name, {false});
  }
  for (const char* const name : {"skip_special_tokens", "spaces_between_special_tokens"}) {
    fields.RefuseUnless(name, {true});
  }
  fields.Refuse("stop_regex", "");
}

// Parameters of other servers' samplers, with the values that turn each off.
void RefuseOtherSamplers(Fields& fields) {
  for (const char* const name :
       {"mirostat", "mirostat_mode", "xtc_probability", "dynatemp_range", "dry_multiplier", "top_a",
        "smoothing_factor", "epsilon_cutoff", "eta_cutoff", "penalty_alpha", "no_repeat_ngram_size",
        "min_tokens", "min_length"}) {
    fields.RefuseUnless(name, {0});
  }
  for (const char* const name : {"typical_p", "typical", "tfs_z", "tfs"}) {
    fields.RefuseUnless(name, {0, 1});
  }
  for (const char* const name : {"length_penalty", "guidance_scale"})
    fields.RefuseUnless(name, {1});
  for (const char* const name : {"top_n_sigma", "adaptive_target"})
    fields.RefuseUnless(name, {-1, 0});
  for (const char* const name : {"ignore_eos", "use_beam_search", "early_stopping"}) {
    fields.RefuseUnless(name, {false});
  }
  RefuseOtherTexts(fields);
  for (const char* const name :
       {"stop_token_ids", "bad_words", "allowed_token_ids", "logits_processors"}) {
    fields.Refuse(name);
  }
}

// Reads the number of last tokens that penalties count: 0 turns them off, and -1 means all.
void ReadPenaltyWindow(Fields& fields, SamplingParams& params) {
  params.penalty_window = 0;
  if (!fields.Has("repeat_last_n")) return;
  const auto window = static_cast<std::int32_t>(fields.Integer("repeat_last_n", -1, -1, kMax));
  if (window == 0) {
    params.repeat_penalty = 1.0f;
    params.presence_penalty = params.frequency_penalty = 0.0f;
  }
  params.penalty_window = std::max(window, 0);
}

}  // namespace

std::uint64_t RandomSeed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

SamplingParams ReadSampling(Fields& fields, double max_temperature) {
  const auto number = [&](const char* name, double fallback, double min, double max) {
    return static_cast<float>(fields.Number(name, fallback, min, max));
  };
  SamplingParams params;
  params.temperature = number("temperature", 1.0, 0.0, max_temperature);
  params.top_p = number("top_p", 1.0, 0.0, 1.0);
  // No token is left at 0; the most likely one remains for the smallest positive value.
  if (params.top_p <= 0.0f) params.top_p = std::numeric_limits<float>::min();
  // Some clients turn it off with -1.
  params.top_k = std::max(0, static_cast<std::int32_t>(fields.Integer("top_k", 0, -1, kMax)));
  params.min_p = number("min_p", 0.0, 0.0, 1.0);
  params.presence_penalty = number("presence_penalty", 0.0, -2.0, 2.0);
  params.frequency_penalty = number("frequency_penalty", 0.0, -2.0, 2.0);
  const double repeat = fields.Number("repeat_penalty", 1.0, 0.01, 100.0);
  params.repeat_penalty = number("repetition_penalty", repeat, 0.01, 100.0);
  ReadPenaltyWindow(fields, params);
  RefuseOtherSamplers(fields);
  params.seed =
      static_cast<std::uint64_t>(fields.Integer("seed", 0, std::numeric_limits<std::int64_t>::min(),
                                                std::numeric_limits<std::int64_t>::max()));
  if (!fields.Has("seed")) params.seed = RandomSeed();
  return params;
}

std::int32_t ReadMostTokens(Fields& fields, const char* name, std::int32_t fallback) {
  using Limits = std::numeric_limits<std::int64_t>;
  const std::int64_t tokens = fields.Integer(name, fallback, Limits::min(), Limits::max());
  if (tokens < 1 && tokens != -1) fields.Fail(name, "must be at least 1, or -1 for no limit");
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(tokens, -1, kMax));
}

}  // namespace kvcache::server
