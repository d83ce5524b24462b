// Rows of f32 to and from the weight types, for tools and loaders (kernels have their own).
//
// F16 and BF16 round to nearest even. What the bytes of block types stand for, and how they are
// chosen, is written where it is done: quantize_blocks.cc, quantize_super_blocks.cc and
// quantize_mxfp4.cc. Q8_0,
// per block of 32 values x:
//   d = max|x| / 127,   q = round(x · (1/d)), halves away from zero,   stored: f16(d), 32 × q
// in f32 throughout, q from the unrounded d; a block of zeros has d = 0. These are the bits of
// ggml's reference (ggml-quants.c, quantize_row_q8_0_ref), but that a block too small for 1/d
// has quants of zero, and that values which are not finite are refused.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <span>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// Converts `values` to `type`. REQUIRES: out.size() == BytesOf(type, values.size()), whole
// blocks, and finite values for block types; else kInvalidArgument. kUnsupported for types that
// hold no real numbers.
Status Quantize(DType type, std::span<const float> values, std::span<std::byte> out);

// The values that `bytes` stand for, exactly. The same requirements.
Status Dequantize(DType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace kvcache
