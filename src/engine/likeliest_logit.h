// The likeliest of a row of logits, and how likely it is.
//
// Thread safety: pure functions.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "engine/logit_scan.h"

namespace kvcache {

// Returns the index of the largest logit, the first of equals. REQUIRES: there are logits.
inline std::size_t LikeliestLogit(std::span<const float> logits) {
  std::size_t best = 0;
  float largest = logits.front();
  ForBlocksWith(
      logits, [&](float logit) { return logit > largest; },
      [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
          if (!(logits[i] > largest)) continue;
          best = i;
          largest = logits[i];
        }
      });
  return best;
}

// Returns the probability of the largest logit `best`. Those that are less likely by a factor of e^-16 are not
// counted.
inline double ChanceOfLikeliest(std::span<const float> logits, float best) {
  constexpr float kFar = 16.0f;
  double sum = 0.0;
  ForBlocksWith(
      logits, [&](float logit) { return logit > best - kFar; },
      [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
          if (logits[i] > best - kFar) sum += static_cast<double>(std::exp(logits[i] - best));
        }
      });
  return sum > 0.0 ? 1.0 / sum : 0.0;
}

}  // namespace kvcache
