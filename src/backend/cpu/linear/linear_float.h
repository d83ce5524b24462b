// Linear layers with F32, F16 and BF16 weights, which are read in place.
//
// Exactness: each output is the sum over the 16 virtual lanes of docs/design/exactness.md, in both
// forms below, so the bits do not depend on which form computed a token.
// Thread safety: all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/types.h"

namespace kvcache::cpu::flt {

// Rows [outputs][inputs], dense.
struct Weights {
  const std::byte* rows = nullptr;
  DType dtype = DType::kF32;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};

// ---- Along the rows, for few tokens. Reads the weights from memory once.

// Computes y[t * outputs + n] for all tokens t of x [tokens][inputs] and rows n in [begin, end).
// REQUIRES: tokens < kMinPanelTokens.
void MultiplyRows(const Weights& w, const float* x, std::int64_t tokens, float* y,
                  std::int64_t begin, std::int64_t end);

// ---- By panels of rows, for many tokens.
//
// A panel holds rows widened to f32, with the inputs ordered by virtual lane: all inputs of lane 0,
// then of lanes 8, 4, 12, 2, … (bit-reversed). In this order finished lanes can be added at once,
// as the tree that folds the lanes prescribes. Activations are packed in the same order, a tile of
// tokens side by side.

// The number of tokens from which packing pays. REQUIRES, for all below: tokens >= this.
inline constexpr std::int64_t kMinPanelTokens = 29;

std::int64_t PanelRows(std::int64_t inputs);    // rows per call of MultiplyPanel
std::int64_t PanelFloats(std::int64_t inputs);  // workspace of MultiplyPanel

// The packed activations: the number of their tiles, their size, and the packing of one tile in
// [0, PackedTiles()).
std::int64_t PackedTiles(std::int64_t tokens);
std::int64_t PackedFloats(std::int64_t inputs, std::int64_t tokens);
void PackTile(const float* x, std::int64_t inputs, std::int64_t tokens, std::int64_t tile,
              float* packed);

struct PanelProduct {
  Weights w;
  const float* packed = nullptr;
  std::int64_t tokens = 0;
  float* y = nullptr;
};
// Computes y[t * outputs + n] for the rows n of panel `panel` and the tokens t of packed tiles
// [tile_begin, tile_end). `workspace` holds PanelFloats(inputs) floats, 64-byte aligned.
void MultiplyPanel(const PanelProduct& product, std::int64_t panel, std::int64_t tile_begin,
                   std::int64_t tile_end, float* workspace);

}  // namespace kvcache::cpu::flt
