// Fits the line value = scale · code - minimum to a sub-block's values (Q2_K, Q4_K, Q5_K).
#pragma once

#include <span>

namespace kvcache::codec {

struct LineFit {
  float scale;
  float minimum;  // not negative
};

// The code of a value, 0 to `max`; `inverse` is InverseOf(fit.scale).
int CodeOnLine(float value, const LineFit& fit, float inverse, int max);

// The line through (code, value) with the smallest squared error, for the codes that `fit` chooses.
LineFit ImprovedLine(std::span<const float> values, const LineFit& fit, int max);

}  // namespace kvcache::codec
