// Linear layers with block-quantised weights, repacked into panels of 16 rows; activations are
// quantised per call. docs/design/block-weights.md says how a type is added.
//
// Exactness: each output is the chain of its family in docs/design/exactness.md over all blocks
// in ascending order, from +0, whatever the number of tokens. The integers in it are exact.
// Thread safety: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/common/block_layout.h"
#include "kvcache/types.h"

namespace kvcache::cpu::block {

// Packs `rows` (1 to 16) rows of `inputs` values, in a model file's format, into a panel. Missing
// rows become zero.
void PackPanel(DType dtype, const std::byte* file_rows, std::int64_t rows, std::int64_t inputs,
               std::byte* panel);

// The quantised activations of a call. Tokens are cut into tiles; a chunk of 256 inputs holds all
// tiles, so that a chunk of weights is multiplied with one contiguous stream:
//
//   values       [chunk][tile][32 inputs][token of the tile][32]; with digits, twice 32
//   scales       kPer32: [chunk][tile][32 inputs][token]; kPer16: with 16 inputs
//                kPer256: [chunk][token]                       x = scale × value
//   corrections  -128 × a sum of values; kPer32: kSumStart (common/block_bytes-inl.h) more.
//                kPer32: [chunk][tile][32 inputs][token]
//                kPer256, kPer16: [chunk][tile][16 inputs][token]
//   sums         [chunk][tile][32 inputs][token]; of the values, kPer32: times scale
//                kPer16: none
struct QuantizedX {
  static constexpr std::int64_t kMaxValueBytes = 2;
  // int16 on the portable target of x86-64, int8 on all others (block::Value).
  std::byte* values = nullptr;  // [tokens × inputs], kMaxValueBytes reserved for each
  float* scales = nullptr;
  std::int32_t* corrections = nullptr;
  float* sums = nullptr;
  std::int64_t inputs = 0;
  std::int64_t tokens = 0;
  InputScales kind = InputScales::kPer32;

  // The size of all arrays.
  std::int64_t Bytes() const;
  // Places the arrays in Bytes() bytes at `base`, which is 64-byte aligned.
  void Place(std::byte* base);
};

// Quantises the column x [inputs] of token `token`.
void QuantizeToken(const float* x, std::int64_t token, const QuantizedX& out);

// A product of block-quantised weights with quantised activations.
// REQUIRES: x.kind is InputScalesOf(dtype).
struct Product {
  DType dtype = DType::kQ8_0;
  const std::byte* panels = nullptr;
  std::int64_t outputs = 0;
  QuantizedX x;
  float* y = nullptr;
};
// Workspace of MultiplyPanels.
std::int64_t PanelWorkspaceBytes(std::int64_t tokens);
// Computes y[t * outputs + n] for all tokens t and the rows n < outputs of panels [begin, end).
// `workspace` holds PanelWorkspaceBytes(tokens) bytes, 64-byte aligned.
void MultiplyPanels(const Product& product, std::int64_t begin, std::int64_t end,
                    std::byte* workspace);

}  // namespace kvcache::cpu::block
