// Refuses scales of weights that no kernel multiplies with a sum of integers: docs/design/exactness.md,
// "Scaled sums of integers". Backends call it for each row when they prepare weights.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// The largest exponent byte of MXFP4: a scale of 2^103.
inline constexpr int kLargestMxfp4Exponent = 230;

// Returns the first block of a row whose scale is ±infinity or, in MXFP4, above 2^103; or -1. Types of
// super-blocks, floats, and NVFP4, whose scales are finite, have none. A NaN is no such scale.
// REQUIRES: whole blocks.
std::int64_t FindRefusedScale(DType dtype, std::span<const std::byte> row);

// Returns kCorrupt with the block, its scale and the rule, for the block that FindRefusedScale found.
Status RefuseScale(DType dtype, std::span<const std::byte> row, std::int64_t block);

}  // namespace kvcache
