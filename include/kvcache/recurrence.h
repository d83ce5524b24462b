// Arguments of a backend's recurrent kernels: a short causal convolution, the scan of a
// matrix-valued state, and the decay rates of that scan.
//
// A batch is divided into segments. A segment is a range of the batch's columns: tokens of one
// sequence, one after another. It reads the state before its first token and writes the state after
// its last one. Segments form strands. A strand's segments are processed in order, because a segment
// may read a state that an earlier one wrote. Strands are independent of each other:
//
//   columns   0 1 2 3 4 5 6 | 7 | 8 9        three sequences, so three strands
//   drafts    0 1 2 ─ 3 4                    one strand of three segments: the second and the
//                 └ 5 6                      third read the state that the first one wrote
//
// States are f32. RecurrentCache::Segments returns the segments of a pass.
//
// Thread safety: values. Exactness: kernels process the tokens of a path one after another, so a
// state has the same bits for every division into segments and passes (docs/design/exactness.md).
#pragma once

#include <cstddef>
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

// Neighboring columns of a batch, and the addresses of their states. A state is dense f32. For a
// convolution it is the inputs of the last steps - 1 tokens, oldest first, [steps - 1, channels].
// For a scan it is [v_dim, k_dim, heads].
struct StateSegment {
  std::int32_t first = 0;   // batch index of its first token
  std::int32_t tokens = 0;  // at least 1
  const std::byte* before = nullptr;
  std::byte* after = nullptr;  // `before`, or memory that does not overlap it
};

// All segments of a batch. REQUIRES: a segment reads no state that another strand writes.
struct StateSegments {
  std::span<const StateSegment> segments{};
  // [number of strands + 1], ascending from 0 to segments.size(): strand i consists of segments
  // [strands[i], strands[i + 1]).
  std::span<const std::int32_t> strands{};
  std::int64_t values = 0;  // f32 of one state
};

// The update of a head's state S [v_dim, k_dim] with a token's key k and value v. Each token and
// head has a decay g and a step β:
enum class ScanRule : std::uint8_t {
  kAdd,    // S = g S + β v kᵀ
  kDelta,  // S = g S + β (v - g S k) kᵀ: removes the value that S holds under k first
};

// Which heads use the keys and queries of one group.
enum class ScanGroups : std::uint8_t {
  kNeighbors,  // head h uses group h / (heads / groups)
  kRotating,   // head h uses group h mod groups
};

// All f32; the first dimension is dense, other strides are free. ScanOptions::groups says which keys
// and queries a head uses.
struct ScanInputs {
  TensorView keys;     // [k_dim, groups, batch]
  TensorView queries;  // [k_dim, groups, batch]
  TensorView values;   // [v_dim, heads, batch]
  TensorView decays;   // [heads, batch]
  TensorView steps;    // [heads, batch]
};

struct ScanOptions {
  ScanRule rule = ScanRule::kAdd;
  ScanGroups groups = ScanGroups::kNeighbors;
  float norm_epsilon = 0.0f;      // > 0: keys and queries are divided by √(Σ x² + epsilon)
  float query_scale = 1.0f;       // factor on queries
  std::span<const float> skip{};  // [heads] or empty: out += skip[h] × v
};

}  // namespace kvcache
