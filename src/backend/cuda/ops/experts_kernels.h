// The kernels of experts.h, and their arguments.
//
// Thread safety: values.
#pragma once

#include <cstdint>

namespace kvcache::cuda {

inline constexpr int kRouteThreads = 32;  // a warp routes a token
inline constexpr int kCombineThreads = 256;
inline constexpr std::int64_t kCombineBlock = std::int64_t{kCombineThreads} * 4;

// Kernel route: a block per token. Shared memory: RouteSharedFloats floats.
struct RouteArgs {
  const float* logits;
  const float* selection_bias;  // [experts] or null
  const float* factors;         // [experts] on the weights, or null
  std::int32_t* experts;        // [chosen, tokens]
  float* weights;               // [chosen, tokens]
  std::int64_t stride;          // floats from one token's logits to the next
  std::int32_t count;           // experts
  std::int32_t chosen;
  std::int32_t groups;
  std::int32_t groups_used;
  std::int32_t group_best;
  float scale;
  bool sigmoid;
  bool normalized;
};

// Returns whether experts are chosen by anything but the order of the logits.
inline constexpr bool IsScored(const RouteArgs& args) {
  return args.selection_bias != nullptr || args.groups > 1;
}

// The shared memory of a token: one bit per expert, and with scores one bit and one score per group and
// one score per expert.
inline constexpr std::int64_t TakenWords(std::int64_t count) {
  return (count + 31) / 32;
}
inline constexpr std::int64_t RouteSharedFloats(const RouteArgs& args) {
  return TakenWords(args.count) +
         (IsScored(args) ? args.count + args.groups + TakenWords(args.groups) : 0);
}

// Kernel combine: blocks [i · blocks, (i + 1) · blocks) compute column i of out.
struct CombineArgs {
  const float* y;
  const std::int32_t* columns;  // [parts, batch]
  const float* weights;         // [parts, batch], or null: all are 1
  float* out;
  std::int64_t y_stride;
  std::int64_t out_stride;
  std::int64_t width;
  std::int32_t parts;
  std::int32_t blocks;
  bool vectors;  // y and out hold vectors of four
};

}  // namespace kvcache::cuda
