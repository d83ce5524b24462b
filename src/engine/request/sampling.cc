#include "kvcache_engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/arithmetic/exponentials.h"
#include "base/errors.h"
#include "base/step_parts.h"
#include "base/strings.h"
#include "engine/request/logit_scan.h"

namespace kvcache {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Status OutOfRange(const char* name, double value, const char* range) {
  return InvalidArgument(StrCat(name, " is ", std::to_string(value), ", expected ", range));
}

bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
}

}  // namespace

// Written so that NaN fails every check.
Status SamplingParams::Check() const {
  if (!(temperature >= 0 && std::isfinite(temperature))) {
    return OutOfRange("temperature", temperature, "0 or more");
  }
  if (top_k < 0) return OutOfRange("top-k", top_k, "0 or more");
  if (!(top_p > 0 && top_p <= 1)) return OutOfRange("top-p", top_p, "above 0, at most 1");
  if (!(min_p >= 0 && min_p <= 1)) return OutOfRange("min-p", min_p, "0 to 1");
  if (!(repeat_penalty > 0 && std::isfinite(repeat_penalty))) {
    return OutOfRange("repeat penalty", repeat_penalty, "above 0");
  }
  if (!std::isfinite(presence_penalty)) {
    return OutOfRange("presence penalty", presence_penalty, "a number");
  }
  if (!std::isfinite(frequency_penalty)) {
    return OutOfRange("frequency penalty", frequency_penalty, "a number");
  }
  for (const LogitBias& bias : logit_bias) {
    if (!std::isfinite(bias.bias)) return OutOfRange("logit bias", bias.bias, "a number");
  }
  if (penalty_window < 0) return OutOfRange("penalty window", penalty_window, "0 or more");
  return Status::Ok();
}

Sampler::Sampler(const SamplingParams& params) : params_(params), random_(params.seed) {}

std::span<const Candidate> Sampler::Distribution(std::span<const float> logits,
                                                 std::span<const std::int32_t> history) {
  if (HasPenalties() || !params_.logit_bias.empty()) {
    logits_.assign(logits.begin(), logits.end());
    if (HasPenalties()) ApplyPenalties(history);
    ApplyBiases();
    logits = logits_;
  }
  const bool greedy = params_.temperature == 0.0f;
  const StepScope scope(StepPart::kKernels);
  const auto top_k = static_cast<std::size_t>(params_.top_k);
  KeepTopK(logits, greedy ? 1 : (top_k == 0 ? logits.size() : std::min(top_k, logits.size())));
  Normalize();
  if (!greedy) KeepTopPAndMinP();
  return candidates_;
}

std::int32_t Sampler::Sample(std::span<const float> logits, std::span<const std::int32_t> history) {
  const std::span<const Candidate> distribution = Distribution(logits, history);
  if (distribution.size() == 1) return distribution.front().token;
  // 53 random bits as a double in [0, 1): the same on every platform, unlike
  // std::uniform_real_distribution.
  const double draw = static_cast<double>(random_() >> 11) * 0x1p-53;
  double sum = 0.0;
  std::int32_t drawn = distribution.front().token;
  for (const Candidate& candidate : distribution) {
    if (candidate.probability == 0.0f) break;  // rounding may leave the sum below the draw
    drawn = candidate.token;
    sum += static_cast<double>(candidate.probability);
    if (draw < sum) break;
  }
  return drawn;
}

bool Sampler::HasPenalties() const {
  return params_.repeat_penalty != 1.0f || params_.frequency_penalty != 0.0f ||
         params_.presence_penalty != 0.0f;
}

// A forced token is more likely than every other by more than any logit; among themselves they keep their
// order.
void Sampler::ApplyBiases() {
  constexpr float kForce = 1e4f;
  for (const LogitBias& bias : params_.logit_bias) {
    if (bias.token < 0 || static_cast<std::size_t>(bias.token) >= logits_.size()) continue;
    float& logit = logits_[static_cast<std::size_t>(bias.token)];
    const bool forced = bias.bias >= LogitBias::kForced;
    logit = bias.bias <= -LogitBias::kForced ? -kInfinity : logit + (forced ? kForce : bias.bias);
  }
}

void Sampler::ApplyPenalties(std::span<const std::int32_t> history) {
  counts_.resize(logits_.size());
  const auto window = static_cast<std::size_t>(params_.penalty_window);
  if (window > 0 && history.size() > window) history = history.last(window);
  // The cells of a picture have ids below 0, which have no logit.
  const auto has_logit = [&](std::size_t at) { return at < counts_.size(); };
  for (const std::int32_t token : history) {
    const auto at = static_cast<std::size_t>(token);
    if (has_logit(at)) ++counts_[at];
  }
  for (const std::int32_t token : history) {
    const auto at = static_cast<std::size_t>(token);
    if (!has_logit(at) || counts_[at] == 0) continue;  // done at an earlier occurrence
    float& logit = logits_[at];
    logit = logit > 0 ? logit / params_.repeat_penalty : logit * params_.repeat_penalty;
    logit -= static_cast<float>(counts_[at]) * params_.frequency_penalty + params_.presence_penalty;
    counts_[at] = 0;
  }
}

// Keeps the k largest logits, sorted, in a heap of k entries. A block is passed over if none of its
// logits is greater than the least of the heap: an equal one with a greater token is less likely. NaN has
// no place in an order, so it is the least likely.
void Sampler::KeepTopK(std::span<const float> logits, std::size_t k) {
  candidates_.clear();
  candidates_.reserve(k);
  for (std::size_t i = 0; i < k; ++i) {
    candidates_.push_back(
        {static_cast<std::int32_t>(i), std::isnan(logits[i]) ? -kInfinity : logits[i]});
  }
  std::make_heap(candidates_.begin(), candidates_.end(), MoreLikely);
  float min = candidates_.front().probability;
  ForBlocksWith(
      logits.subspan(k), [&](float logit) { return logit > min; },
      [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = k + begin; i < k + end; ++i) {
          if (!(logits[i] > min)) continue;
          std::pop_heap(candidates_.begin(), candidates_.end(), MoreLikely);
          candidates_.back() = {static_cast<std::int32_t>(i), logits[i]};
          std::push_heap(candidates_.begin(), candidates_.end(), MoreLikely);
          min = candidates_.front().probability;
        }
      });
  std::sort(candidates_.begin(), candidates_.end(), MoreLikely);
}

// With infinite logits or a temperature near 0, the tokens as likely as the best one remain.
void Sampler::Normalize() {
  const float scale = params_.temperature == 0.0f ? 1.0f : 1.0f / params_.temperature;
  const float largest = candidates_.front().probability;
  double sum = 0.0;
  for (Candidate& candidate : candidates_) {
    const bool best = candidate.probability == largest;
    candidate.probability =
        best ? 1.0f : arithmetic::Exp((candidate.probability - largest) * scale);
    sum += static_cast<double>(candidate.probability);
  }
  for (Candidate& candidate : candidates_) {
    candidate.probability = static_cast<float>(candidate.probability / sum);
  }
}

void Sampler::KeepTopPAndMinP() {
  const float minimum = params_.min_p * candidates_.front().probability;
  std::size_t kept = 0;
  double sum = 0.0;
  while (kept < candidates_.size() && (kept == 0 || candidates_[kept].probability >= minimum)) {
    sum += static_cast<double>(candidates_[kept++].probability);
    if (params_.top_p < 1.0f && sum >= static_cast<double>(params_.top_p)) break;
  }
  candidates_.resize(kept);
  for (Candidate& candidate : candidates_) {
    candidate.probability = static_cast<float>(candidate.probability / sum);
  }
}

}  // namespace kvcache
