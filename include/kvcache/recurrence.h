// What recurrent layers ask of a backend beside linear layers: a short causal convolution, the
// scan of a matrix-valued state, and the rates of its decay.
//
// A batch holds the pass's sequences side by side, the same number of tokens each: with n
// sequences, the batch's column s · (batch / n) + t is token t of sequence s. How many sequences
// there are is the last dimension of the states (RecurrentCache's views have that form). States
// are f32; those after the pass go to other memory than those before it.
//
// Exactness: tokens are taken one after another, so that a state has the same bits however its
// tokens were cut into passes (docs/design/exactness.md).
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

// What is remembered before and after a pass, dense but for the last dimension:
// a convolution's inputs of the last steps - 1 tokens [steps - 1, channels, sequences], oldest
// first; a scan's states [v_dim, k_dim, heads, sequences].
struct StateViews {
  TensorView before;
  TensorView after;
};

// How a head's state S [v_dim, k_dim] takes in a token's key k and value v. With a decay g and a
// step β, both of the token and head:
enum class ScanRule : std::uint8_t {
  kAdd,    // S = g S + β v kᵀ
  kDelta,  // S = g S + β (v - g S k) kᵀ: first what S holds under k is taken out
};

// All f32, with dense first dimensions and any other strides. Head h has the keys and queries of
// group h / (heads / groups).
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
