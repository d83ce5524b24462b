// The factors of a rotation by positions: RoPE, and keys that move.
//
// Exactness: docs/design/exactness.md, the same bits for every target. Thread safety: pure functions.
#pragma once

#include <span>

#include "kvcache/types.h"

namespace kvcache::cpu {

// cosines[i] and sines[i] of position × inv_freq[i], times the magnitude: in f64, rounded once to f32.
void RotationFactors(Position position, std::span<const float> inv_freq, float magnitude,
                     float* cosines, float* sines);

}  // namespace kvcache::cpu
