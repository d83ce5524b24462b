// Linear layers with F32, F16 and BF16 weights, read where they lie.
//
// Exactness: each output is the 16 virtual lanes of docs/design/exactness.md over all inputs,
// in both forms below: a token's bits do not tell which one computed it.
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

// ---- Along the rows, for few tokens: streams the weights once for every few of them.

// y[t * outputs + n] for all tokens t of x [tokens][inputs] and rows n of [begin, end).
void MultiplyRows(const Weights& w, const float* x, std::int64_t tokens, float* y,
                  std::int64_t begin, std::int64_t end);

// ---- By panels of rows, for many tokens.
//
// A panel holds rows widened to f32, the inputs ordered by virtual lane: all of lane 0, of
// lane 8, 4, 12, 2, … (bit-reversed), so that finished lanes meet in the order of the tree that
// folds them. Activations are packed likewise, a tile of tokens side by side.

// From so many tokens on, packing pays for itself. REQUIRES, for all below: tokens >= this.
inline constexpr std::int64_t kMinPanelTokens = 29;

std::int64_t PanelRows(std::int64_t inputs);    // rows that one call of MultiplyPanel serves
std::int64_t PanelFloats(std::int64_t inputs);  // workspace that it works in

// Room for the packed activations, and their packing, tile by tile in [0, PackedTiles()).
std::int64_t PackedTiles(std::int64_t tokens);
std::int64_t PackedFloats(std::int64_t inputs, std::int64_t tokens);
void PackTile(const float* x, std::int64_t inputs, std::int64_t tokens, std::int64_t tile,
              float* packed);

// y[t * outputs + n] for the rows n of panel `panel` and the tokens of packed tiles
// [tile_begin, tile_end). `workspace` holds PanelFloats(), 64-byte aligned.
struct PanelProduct {
  Weights w;
  const float* packed = nullptr;
  std::int64_t tokens = 0;
  float* y = nullptr;
};
void MultiplyPanel(const PanelProduct& product, std::int64_t panel, std::int64_t tile_begin,
                   std::int64_t tile_end, float* workspace);

}  // namespace kvcache::cpu::flt
