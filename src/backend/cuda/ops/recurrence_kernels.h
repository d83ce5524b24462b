// The kernels of recurrence.h, and their arguments. Strides count floats.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/recurrence.h"

namespace kvcache::cuda {

// The segments of a batch: in memory of the device, or, if there are few, in the arguments themselves.
struct SegmentList {
  static constexpr int kFew = 16;

  const StateSegment* segments;  // null: few_segments and few_strands
  const std::int32_t* strands;
  StateSegment few_segments[kFew];
  std::int32_t few_strands[kFew + 1];
};

// ---- Convolution

inline constexpr int kConvThreads = 128;  // a thread per channel
// Tokens of a segment that the thread of its state computes; the others are computed in parts of as
// many. At least the steps of a convolution: only a first part reads the state.
inline constexpr std::int64_t kConvTokens = 64;

// Some tokens of a segment.
struct ConvPart {
  std::int32_t first;  // batch index
  std::int32_t tokens;
};

// Kernel conv_states: blocks [i · blocks, (i + 1) · blocks) compute strand i: the states, and the first
// kConvTokens outputs of each segment. Kernel conv_parts: blocks compute part i.
struct ConvArgs {
  const float* x;
  float* y;  // null: states only
  const float* taps;
  const float* bias;  // or null
  const ConvPart* parts;
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::int32_t steps;
  std::int32_t channels;
  std::int32_t blocks;
  SegmentList list;
};

// ---- Decay rates

inline constexpr int kRateThreads = 256;

// Kernel decay_rates: a thread per head and token.
struct RateArgs {
  const float* raw;
  const float* bias;
  const float* rates;
  float* steps;  // may be raw
  float* decays;
  std::int64_t raw_stride;
  std::int64_t steps_stride;
  std::int64_t decays_stride;
  std::int64_t values;  // heads × batch
  std::int32_t heads;
};

// ---- Scan

inline constexpr int kScanThreads =
    32;  // a warp has as many columns of a head's state, one per thread

// Kernels scan_64 and scan_128, for as many keys: the state is in registers. Others: scan_shared has it in shared
// memory and, for long keys, scan_global in `after`. Blocks of a strand are ordered by head, then by column.
struct ScanArgs {
  static constexpr int kFewHeads = 128;

  const float* keys;
  const float* queries;  // null without out
  const float* values;
  const float* decays;
  const float* steps;
  float* out;  // null: states only
  std::int64_t key_group, key_token;
  std::int64_t query_group, query_token;
  std::int64_t value_head, value_token;
  std::int64_t decay_token, step_token;
  std::int64_t out_head, out_token;
  std::int32_t k_dim, v_dim, groups, heads;
  std::int32_t blocks;  // of a head's columns
  float norm_epsilon;
  float query_scale;
  bool delta;
  bool rotating;
  bool vectors;  // keys and queries hold vectors of four, and k_dim is a multiple of four
  bool skips;
  const float* skip;  // null: few_skips
  float few_skips[kFewHeads];
  SegmentList list;
};

// Tokens whose keys and queries are in shared memory at once, in each of two buffers.
template <int kKeys>
inline constexpr int kScanTokens = kKeys > 0 ? 4 : 2;

// A buffer has the keys of kTokens tokens and the one behind them, their queries, and their factors.
inline constexpr std::int64_t ScanBufferFloats(std::int64_t k_dim, int tokens) {
  return (2 * tokens + 1) * ((k_dim + 3) / 4 * 4) + 4 * tokens;
}
template <int kKeys>
inline constexpr std::int64_t ScanSharedFloats(std::int64_t k_dim, bool with_state) {
  return 2 * ScanBufferFloats(k_dim, kScanTokens<kKeys>) + (with_state ? kScanThreads * k_dim : 0);
}

}  // namespace kvcache::cuda
