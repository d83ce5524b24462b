// Q8_0 linear layers: weights repacked into panels, activations quantised per call.
//
// A panel holds 16 rows. Its blocks of 32 inputs come in pairs, one stream from end to end:
//
//   pair 0: | scales: block 0, 16 rows × f16, then block 1 |                        64 bytes
//           | inputs 0-3: row 0 b b b b, row 1 b b b b, … row 15 | inputs 4-7: … |   2 × 512 bytes
//   pair 1: | … |      (an odd last block leaves its partner's scales unused, has no partner)
//
// where b is the int8 weight with its sign bit turned, so that the dot-product instructions
// may take it as unsigned; 128 × the sum of the inputs is taken off again. Rows beyond N are
// zero weights with zero scale.
//
// Exactness: y[n] = fma(float(isum_b), d_w · d_x, y[n]) from +0 for blocks b in ascending order,
// with isum_b an exact integer, whatever the number of tokens.
// Thread safety: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::cpu::q8 {

inline constexpr std::int64_t kPanelRows = 16;
inline constexpr std::int64_t kBlock = 32;
inline constexpr std::int64_t kFileBlockBytes = 34;  // f16 scale, 32 × int8
inline constexpr std::int64_t kBlockQuantBytes = kPanelRows * kBlock;
inline constexpr std::int64_t kPairScaleBytes = 64;
inline constexpr std::int64_t kPairBytes = kPairScaleBytes + 2 * kBlockQuantBytes;

// REQUIRES: inputs is a multiple of 32.
constexpr std::int64_t PanelBytes(std::int64_t inputs) {
  const std::int64_t blocks = inputs / kBlock;
  return blocks / 2 * kPairBytes + blocks % 2 * (kPairScaleBytes + kBlockQuantBytes);
}
constexpr std::int64_t Panels(std::int64_t outputs) {
  return (outputs + kPanelRows - 1) / kPanelRows;
}

// Writes a panel of `rows` (1 to 16) rows of `inputs` values, as a model file holds them.
void PackPanel(const std::byte* file_rows, std::int64_t rows, std::int64_t inputs,
               std::byte* panel);

// Activations of a call, in tiles of tokens: where a tile starts at token t, its values start
// at t × inputs and lie as [block][token of the tile][32], its scales and corrections at
// t × (inputs / 32) as [block][token of the tile].
struct QuantisedX {
  static constexpr std::int64_t kMaxValueBytes = 2;
  // int8 where the target has int8 dot products, int16 elsewhere.
  std::byte* values = nullptr;          // [tokens × inputs], room for kMaxValueBytes each
  float* scales = nullptr;              // [tokens × inputs / 32]
  std::int32_t* corrections = nullptr;  // [tokens × inputs / 32]: -128 × the block's sum
  std::int64_t inputs = 0;
  std::int64_t tokens = 0;
};

// Quantises the column x [inputs] of token `token`.
void QuantiseToken(const float* x, std::int64_t token, const QuantisedX& out);

// y[t * outputs + n] for all tokens t and the rows n < outputs of panels [begin, end).
struct Product {
  const std::byte* panels = nullptr;
  std::int64_t outputs = 0;
  QuantisedX x;
  float* y = nullptr;
};
void MultiplyPanels(const Product& product, std::int64_t begin, std::int64_t end);

}  // namespace kvcache::cpu::q8
