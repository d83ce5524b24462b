// The inner loops of recurrence.cc, compiled per target.
//
// Thread safety: all functions are pure. Strides count floats.
#pragma once

#include <cstdint>

#include "backend/cpu/ops/recurrence_check.h"
#include "kvcache/recurrence.h"

namespace kvcache::cpu::kernel {

// The number of channels of a convolution's block.
inline constexpr int kConvBlock = 64;

// One block of channels of one segment. Without y only the state is computed.
struct ConvBlock {
  const float* x = nullptr;  // [channels] of the first token
  std::int64_t x_stride = 0;
  float* y = nullptr;  // [channels] of the first token, or null
  std::int64_t y_stride = 0;
  std::int64_t tokens = 0;
  const float* taps = nullptr;    // [steps, channels]
  const float* bias = nullptr;    // [channels], or null
  const float* before = nullptr;  // [steps - 1, channels]
  float* after = nullptr;         // may be `before`
  int steps = 0;
  int channels = 0;  // at most kConvBlock
};
void Convolve(const ConvBlock& block);

// Some columns of one head's state, for all tokens of a segment. Without `out` only the state is
// computed, and queries are not read.
struct ScanBlock {
  const float* key = nullptr;  // [k_dim] of the first token
  std::int64_t key_stride = 0;
  const float* query = nullptr;
  std::int64_t query_stride = 0;
  const float* value = nullptr;  // of the first column
  std::int64_t value_stride = 0;
  const float* decay = nullptr;
  std::int64_t decay_stride = 0;
  const float* step = nullptr;
  std::int64_t step_stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  const float* before = nullptr;  // [v_dim, k_dim], of the first column
  float* after = nullptr;         // may be `before`
  std::int64_t v_dim = 0;
  std::int64_t k_dim = 0;
  std::int64_t columns = 0;
  std::int64_t tokens = 0;
  ScanRule rule = ScanRule::kAdd;
  float norm_epsilon = 0.0f;
  float query_scale = 1.0f;
  const float* skip = nullptr;  // the head's factor, or null
};
void Scan(const ScanBlock& block);

// Sets steps[i] = ln(1 + exp(raw[i] + bias[i])) and decays[i] = exp(rates[i] × steps[i]).
void DecayRates(const float* raw, const float* bias, const float* rates, std::int64_t count,
                float* steps, float* decays);

}  // namespace kvcache::cpu::kernel
