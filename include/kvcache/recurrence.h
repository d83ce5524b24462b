// Arguments of a backend's recurrent kernels: a short causal convolution, the scan of a
// matrix-valued state, and the decay rates of that scan.
//
// A batch holds n sequences side by side, with the same number of tokens each: column
// s · (batch / n) + t is token t of sequence s. The last dimension of the states is n
// (RecurrentCache's views have that form). States are f32. The states after a pass are written to
// other memory than the states before it.
//
// Thread safety: values. Exactness: kernels process the tokens of a sequence one after another, so
// a state has the same bits for every division into passes (docs/design/exactness.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kvcache/tensor.h"

namespace kvcache {

// y[c] of token t = Σ_j taps[j, c] × x[c] of token t - steps + 1 + j, then + bias[c].
struct ConvTaps {
  TensorView taps;  // [steps, channels], dense f32: the last one is the token's own
  std::optional<TensorView> bias{};  // [channels]
};

// The states before and after a pass, dense except for the last dimension. For a convolution: the
// inputs of the last steps - 1 tokens, oldest first, [steps - 1, channels, sequences]. For a scan:
// [v_dim, k_dim, heads, sequences].
struct StateViews {
  TensorView before;
  TensorView after;
};

// The update of a head's state S [v_dim, k_dim] with a token's key k and value v. Each token and
// head has a decay g and a step β:
enum class ScanRule : std::uint8_t {
  kAdd,    // S = g S + β v kᵀ
  kDelta,  // S = g S + β (v - g S k) kᵀ: removes the value that S holds under k first
};

// All f32; the first dimension is dense, other strides are free. Head h uses the keys and queries
// of group h / (heads / groups).
struct ScanInputs {
  TensorView keys;     // [k_dim, groups, batch]
  TensorView queries;  // [k_dim, groups, batch]
  TensorView values;   // [v_dim, heads, batch]
  TensorView decays;   // [heads, batch]
  TensorView steps;    // [heads, batch]
};

struct ScanOptions {
  ScanRule rule = ScanRule::kAdd;
  float norm_epsilon = 0.0f;      // > 0: keys and queries are divided by √(Σ x² + epsilon)
  float query_scale = 1.0f;       // factor on queries
  std::span<const float> skip{};  // [heads] or empty: out += skip[h] × v
};

}  // namespace kvcache
