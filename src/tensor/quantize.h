// Converts rows of f32 to the weight types and back, for tools and loaders. Kernels have conversions
// of their own; backend/cpu/kv/kv_quantize-inl.h rounds what the cache stores, to the same bits.
//
// F16 and BF16 round to nearest even. quantize_blocks.cc, quantize_super_blocks.cc and
// quantize_mxfp4.cc define the bytes of the block types and how they are chosen. For example Q8_0,
// per block of 32 values x:
//   d = max|x| / 127,   q = round(x · (1/d)), halves away from zero,   stored: f16(d), 32 × q
// All of it is in f32, with q from the unrounded d; a block of zeros has d = 0. The bits are those
// of ggml's reference (ggml-quants.c, quantize_row_q8_0_ref), with two exceptions: a block too
// small for 1/d has quants of zero, and values that are not finite are refused.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <span>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// Converts `values` to `type`. Returns kInvalidArgument unless out.size() is
// BytesOf(type, values.size()), the blocks are whole and, for block types, all values are finite;
// kUnsupported for types that hold no real numbers, or that can only be read.
Status Quantize(DType type, std::span<const float> values, std::span<std::byte> out);

// Returns whether Quantize supports the type.
bool CanQuantize(DType type);

// Converts `bytes` of type `type` to f32, exactly. Returns the same errors for sizes and types.
Status Dequantize(DType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace kvcache
