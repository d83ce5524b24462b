// Block types whose values are entries of a small table, by a code of 2 to 4 bits for each value:
//
//   value = (d · factor · scale) · table[code]  [- dmin · minimum]
//
// `sub` values share a scale and a minimum, which are small integers. Files hold the codes of most
// types directly; the types IQ1 to IQ3 hold indices of a codebook, which is a list of groups of 4 or 8
// values, and signs. ReadCodedBlock takes the blocks of all of them apart, for the codecs and for the
// kernels' layout (backend/cpu/common/block_layout.h).
//
// Products are exact in f32 (11 + 6 + 8 bits); the difference is rounded once.
//
// Thread safety: pure functions.
// Source: ggml's block_* structs and dequantize_row_* (ggml-common.h, ggml-quants.c).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kvcache/types.h"

namespace kvcache::codec {

using CodeTable = std::array<std::int8_t, 16>;

struct CodeType {
  int bits = 0;  // of a code; 0: not such a type
  int sub = 32;  // values that share a scale
  float factor = 1.0f;
  CodeTable table{};
};

// IQ2: a digit of the codebook, and the sign in bit 2. IQ3: the sign is in bit 3; IQ3_XXS has half of ggml's values,
// which are all even. IQ1: two times the
// digit, and in bit 0 whether an eighth is added or subtracted; the table is in eighths.
constexpr CodeType CodeTypeOf(DType type) {
  constexpr CodeTable kThrees = {-4, -3, -2, -1, 0, 1, 2, 3};
  constexpr CodeTable kNonlinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
  constexpr CodeTable kDoubledFloats = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  constexpr CodeTable kIq2Levels = {8, 25, 43, 0, -8, -25, -43, 0};
  constexpr CodeTable kIq3XxsLevels = {2,  6,  10,  14,  18,  22,  26,  31,
                                       -2, -6, -10, -14, -18, -22, -26, -31};
  constexpr CodeTable kIq3SLevels = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
  constexpr CodeTable kIq1Eighths = {-9, -7, -1, 1, 7, 9};
  constexpr CodeTable kTernary = {-1, 0, 1, 2};
  switch (type) {
    case DType::kQ2_K: return {2, 16, 1.0f, {0, 1, 2, 3}};
    case DType::kQ3_K: return {3, 16, 1.0f, kThrees};
    case DType::kIQ4_NL:
    case DType::kIQ4_XS: return {4, 32, 1.0f, kNonlinear};
    case DType::kIQ3_S: return {4, 32, 1.0f, kIq3SLevels};
    case DType::kIQ3_XXS: return {4, 32, 0.5f, kIq3XxsLevels};
    case DType::kIQ2_S:
    case DType::kIQ2_XS: return {3, 16, 0.125f, kIq2Levels};
    case DType::kIQ2_XXS: return {3, 32, 0.125f, kIq2Levels};
    case DType::kIQ1_S: return {3, 32, 0.125f, kIq1Eighths};
    case DType::kIQ1_M: return {3, 16, 0.125f, kIq1Eighths};
    case DType::kTQ1_0:
    case DType::kTQ2_0: return {2, 32, 1.0f, kTernary};
    case DType::kNVFP4: return {4, 16, 0.5f, kDoubledFloats};
    default: return {};
  }
}

// A block in parts. Unused scales and minima are undefined.
struct CodedBlock {
  std::uint16_t d;     // f16; NVFP4 has none: 1
  std::uint16_t dmin;  // f16; of types with minima
  std::array<std::uint8_t, 256> codes;
  // [values that share one] int8; of NVFP4, floats of eight bits. TQ1_0, TQ2_0, IQ4_NL: 1.
  std::array<std::uint8_t, 16> scales;
  std::array<std::uint8_t, 16> minima;  // Q2_K
};

// REQUIRES: CodeTypeOf(type).bits > 0, and block_bytes bytes.
void ReadCodedBlock(DType type, const std::byte* bytes, CodedBlock* block);

// The value of a scale of NVFP4: 4 bits of exponent and 3 of mantissa; the eighth does not count.
// 0x7f is 0, as in ggml.
constexpr float ScaleOfNvfp4(std::uint8_t bits) {
  if (bits == 0x7f) return 0.0f;
  return std::bit_cast<float>((bits & 0x7fu) << 20) * 0x1p120f;
}

}  // namespace kvcache::codec
