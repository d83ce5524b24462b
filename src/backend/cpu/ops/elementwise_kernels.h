// The inner loops of elementwise.cc and rope.cc, compiled per target.
//
// Thread safety: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/backend.h"
#include "kvcache/types.h"

namespace kvcache::cpu::kernel {

// Sets y[i] to value i of a row of any weight type.
void WidenRow(const std::byte* row, DType dtype, std::int64_t width, float* y);

// Sets y = x / sqrt(mean(x²) + epsilon) × weight. The scale is rounded once, then each of the two
// products.
void NormalizeRow(const float* x, const float* weight, float epsilon, std::int64_t width, float* y);

// Sets y = x - mean(x). The sum uses 16 virtual lanes; the mean is rounded, then each difference.
void CenterRow(const float* x, std::int64_t width, float* y);

// Sets x[i] = xielu(x[i]).
void Xielu(float* x, std::int64_t count, const XieluParams& params);

// Sets gate[i] = activation(gate[i]) × up[i].
void Gate(float* gate, const float* up, std::int64_t count, Activation activation);

// Sets gate[i] = g / (1 + exp(-alpha g)) × (u + 1), with g = min(gate[i], limit) and u = up[i]
// clamped to ±limit.
void GateClamped(float* gate, const float* up, std::int64_t count, float alpha, float limit);

// Sets x[i] = activation(x[i]).
void Activate(float* x, std::int64_t count, Activation activation);

// Sets x[i] = cap × tanh(x[i] / cap).
void SoftCap(float* x, std::int64_t count, float cap);

// Sets x[i] += y[i].
void Add(float* x, const float* y, std::int64_t count);

// Sets x[i] *= y[i].
void Multiply(float* x, const float* y, std::int64_t count);

// Sets y[i] = factor × x[i]. y may be x.
void Scale(const float* x, float factor, std::int64_t count, float* y);

// Sets y[i] = fma(factor, x[i], y[i]).
void AddScaled(const float* x, float factor, std::int64_t count, float* y);

// Rotates the pairs of one head in place: (a, b) becomes (a·cos - b·sin, a·sin + b·cos). The second
// product is rounded, the first is fused with the sum.
void RotateHead(float* head, const float* cosines, const float* sines, std::int64_t pairs,
                RopeParams::Pairing pairing);

}  // namespace kvcache::cpu::kernel
