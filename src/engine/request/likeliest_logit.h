// Finds the likeliest of a row of logits.
//
// Thread safety: a pure function.
#pragma once

#include <cstddef>
#include <span>

#include "engine/request/logit_scan.h"

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

}  // namespace kvcache
