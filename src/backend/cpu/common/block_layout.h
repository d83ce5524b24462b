// The memory layout of block-quantised weights: panels of 16 rows, cut into chunks of 256 inputs. A
// panel is one contiguous stream.
//
//   chunk: | head: the rows' scales | 32 inputs | 32 inputs | … up to 8 |
//
// A line is 64 bytes: 16 rows × 4 inputs, the operand of the dot-product instructions. G is one of
// the 8 groups of four inputs in 32 inputs.
//
//   32 inputs of   head, per 32 inputs              body
//   Q8_0           d: 16 × f16                      8 lines, line G: bytes, their sign bit flipped
//   Q4_0           d                                4 lines, line G: nibbles of groups G, G + 4
//   Q4_1           d, then m: 16 × f16              as Q4_0
//   Q5_0           d                                a line whose bit G of byte (row, k) is the
//                                                   fifth bit of input 4 G + k; then as Q4_0
//   Q5_1           d, m                             as Q5_0
//   MXFP4          e: 16 bytes                      as Q4_0
//   IQ4_NL         d                                as Q4_0
//   NVFP4          2 × 16 scales of 8 bits          twice, for 16 inputs: 2 lines of nibbles, of
//                                                   groups G and G + 2
//
//   256 inputs of  head, of the whole chunk         body, per 32 inputs
//   Q4_K           d, dmin, then the 12 bytes of    as Q4_0
//                  scales, each for 16 rows
//   Q5_K           as Q4_K                          as Q5_0
//   Q6_K           16 × (16 rows × int8), d,        twice, for 16 inputs: a line whose bits 2 G
//                  32 bytes unused                  and 2 G + 1 belong to group G of four; 2
//                                                   lines of nibbles, of groups G and G + 2
//   Q2_K           d, dmin, 16 × (16 rows × two     2 lines; bits 2 G and 2 G + 1 of line H
//                  nibbles: scale and minimum)      belong to group G of four of half H
//   Q3_K, IQ2_XS,  d, 16 × (16 rows × int8)         3 lines; nibble H of line L holds group L of
//   IQ2_S, IQ1_M                                    four of half H, and above it bit L of the
//                                                   fourth
//   IQ2_XXS,       d, 8 × (16 rows × int8)          as Q3_K
//   IQ1_S
//   IQ4_XS, IQ3_S, d, 8 × (16 rows × int8)          as Q4_0
//   IQ3_XXS
//   TQ1_0, TQ2_0   d                                as Q2_K
//
// The types from IQ4_NL on hold codes (tensor/coded_block.h). A codebook's index would cost a look-up
// in memory for each group of each row; so the values' codes are held, and IQ1 to IQ3 take more memory
// than in the file: 1.8 to 1.9 bits for each weight of IQ1, 0.9 to 1.3 for IQ2 and IQ3.
//
// The size of other types is that in the file, except for heads, which are rounded up to whole lines,
// and the scales of Q3_K, IQ4_XS and TQ1_0 (docs/design/block-weights.md).
#pragma once

#include <cstdint>

#include "kvcache/types.h"

namespace kvcache::cpu::block {

inline constexpr std::int64_t kPanelRows = 16;
inline constexpr std::int64_t kBlock = 32;
inline constexpr std::int64_t kChunk = 256;
inline constexpr std::int64_t kChunkBlocks = kChunk / kBlock;
inline constexpr std::int64_t kLine = 64;

// How many activations share a scale. Those for weights of whole bytes are kinds of their own, since
// targets without int8 dot products store them as digits.
enum class InputScales : std::uint8_t { kPer16, kPer32, kPer32ForBytes, kPer256, kPer256ForBytes };
inline constexpr int kInputScales = 5;

constexpr bool IsPer256(InputScales kind) {
  return kind == InputScales::kPer256 || kind == InputScales::kPer256ForBytes;
}
constexpr bool IsForBytes(InputScales kind) {
  return kind == InputScales::kPer32ForBytes || kind == InputScales::kPer256ForBytes;
}

struct Layout {
  std::int64_t head_bytes = 0;  // per 32 inputs; 0: no kernels for the type
  std::int64_t body_bytes = 0;  // per 32 inputs
  InputScales input_scales = InputScales::kPer32;
};

constexpr Layout LayoutOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0: return {32, 4 * kLine, InputScales::kPer32};
    case DType::kQ4_1: return {64, 4 * kLine, InputScales::kPer32};
    case DType::kQ5_0: return {32, 5 * kLine, InputScales::kPer32};
    case DType::kQ5_1: return {64, 5 * kLine, InputScales::kPer32};
    case DType::kQ8_0: return {32, 8 * kLine, InputScales::kPer32ForBytes};
    case DType::kMXFP4: return {16, 4 * kLine, InputScales::kPer32};
    case DType::kQ4_K: return {32, 4 * kLine, InputScales::kPer256};
    case DType::kQ5_K: return {32, 5 * kLine, InputScales::kPer256};
    case DType::kQ6_K: return {40, 6 * kLine, InputScales::kPer256};
    case DType::kQ2_K: return {40, 2 * kLine, InputScales::kPer256};
    case DType::kQ3_K:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ1_M: return {36, 3 * kLine, InputScales::kPer256};
    case DType::kIQ2_XXS:
    case DType::kIQ1_S: return {20, 3 * kLine, InputScales::kPer256};
    case DType::kIQ3_XXS:
    case DType::kIQ3_S: return {20, 4 * kLine, InputScales::kPer256};
    case DType::kIQ4_XS: return {20, 4 * kLine, InputScales::kPer256ForBytes};
    case DType::kIQ4_NL: return {32, 4 * kLine, InputScales::kPer32ForBytes};
    case DType::kTQ1_0:
    case DType::kTQ2_0: return {4, 2 * kLine, InputScales::kPer256};
    case DType::kNVFP4: return {32, 4 * kLine, InputScales::kPer16};
    default: return {};
  }
}
constexpr bool IsBlockType(DType dtype) {
  return LayoutOf(dtype).head_bytes > 0;
}
constexpr InputScales InputScalesOf(DType dtype) {
  return LayoutOf(dtype).input_scales;
}

constexpr std::int64_t HeadBytes(DType dtype, std::int64_t blocks) {
  return (LayoutOf(dtype).head_bytes * blocks + kLine - 1) / kLine * kLine;
}
// Bytes of a chunk of `blocks` × 32 inputs. REQUIRES: 1 <= blocks <= 8.
constexpr std::int64_t ChunkBytes(DType dtype, std::int64_t blocks) {
  return HeadBytes(dtype, blocks) + LayoutOf(dtype).body_bytes * blocks;
}
constexpr std::int64_t Chunks(std::int64_t inputs) {
  return (inputs + kChunk - 1) / kChunk;
}
// Blocks of 32 inputs in chunk `chunk`.
constexpr std::int64_t BlocksOf(std::int64_t inputs, std::int64_t chunk) {
  // Without std::min: its references would need the constant in a device's memory.
  const std::int64_t rest = inputs / kBlock - chunk * kChunkBlocks;
  return rest < kChunkBlocks ? rest : kChunkBlocks;
}
// REQUIRES: inputs is a multiple of the type's block size.
constexpr std::int64_t PanelBytes(DType dtype, std::int64_t inputs) {
  const std::int64_t rest = inputs % kChunk / kBlock;
  return inputs / kChunk * ChunkBytes(dtype, kChunkBlocks) +
         (rest > 0 ? ChunkBytes(dtype, rest) : 0);
}
constexpr std::int64_t Panels(std::int64_t outputs) {
  return (outputs + kPanelRows - 1) / kPanelRows;
}

}  // namespace kvcache::cpu::block
