#include "tensor/line_fit.h"

#include <algorithm>

#include "tensor/block_codec.h"

namespace kvcache::codec {

int CodeOnLine(float value, const LineFit& fit, float inverse, int max) {
  return std::clamp(RoundHalfAway((value + fit.minimum) * inverse), 0, max);
}

LineFit ImprovedLine(std::span<const float> values, const LineFit& fit, int max) {
  const float inverse = InverseOf(fit.scale);
  float q1 = 0.0f, q2 = 0.0f, x1 = 0.0f, xq = 0.0f;
  for (const float value : values) {
    const auto q = static_cast<float>(CodeOnLine(value, fit, inverse, max));
    q1 += q;
    q2 += q * q;
    x1 += value;
    xq += q * value;
  }
  const auto count = static_cast<float>(values.size());
  const float spread = count * q2 - q1 * q1;
  if (!(spread > 0.0f)) return fit;
  const float scale = (count * xq - q1 * x1) / spread;
  const float minimum = (q1 * scale - x1) / count;
  if (minimum >= 0.0f) return {scale, minimum};
  return {q2 > 0.0f ? xq / q2 : fit.scale, 0.0f};
}

}  // namespace kvcache::codec
