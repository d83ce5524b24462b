// Writes a batch's keys and values to cells, a piece of a tile and head at a time.
//
// Included by kernels only.
#pragma once

#include "backend/cuda/kv/block_rows-inl.h"
#include "backend/cuda/kv/float_units-inl.h"
#include "backend/cuda/kv/store_kernels.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

KVCACHE_DEVICE const float* RowOf(const StoreSide& side, std::int64_t head, std::int64_t token) {
  return reinterpret_cast<const float*>(side.rows + head * side.head_bytes +
                                        token * side.token_bytes);
}

// Neighbouring threads write neighbouring bytes: units of a cell, or cells of a tile.
KVCACHE_DEVICE void StoreFloats(const StoreSide& side, const StorePiece& piece, int head) {
  const int dim = side.dim;
  const bool by_unit = piece.count == 1 || side.units.unit < side.units.cell;
  for (int i = Thread(); i < piece.count * dim; i += StoreArgs::kThreads) {
    const int row = by_unit ? i / dim : i % piece.count;
    const int unit = by_unit ? i % dim : i / piece.count;
    WriteFloat(side.type, At(side.units, head, piece.cell + row, unit),
               RowOf(side, head, piece.token + row)[unit]);
  }
}

template <bool kBytes>
KVCACHE_DEVICE void StoreKeyBlocks(const StoreSide& side, const StorePiece& piece, int head,
                                   float* workspace) {
  const int lane = Lane();
  float* const row = workspace + Warp() * side.dim;
  for (int i = Warp(); i < piece.count; i += StoreArgs::kThreads / 32) {
    const float* const from = RowOf(side, head, piece.token + i);
    for (int d = lane; d < side.dim; d += 32) row[d] = from[d];
    if (side.latent > 0) HadamardRow(row, side.latent, side.latent_hadamard, side.latent_factor);
    HadamardRow(row + side.latent, side.dim - side.latent, side.hadamard, side.hadamard_factor);
    std::uint32_t shared = 0;
    for (int d = lane; d < side.latent; d += 32) {
      const std::uint32_t bits = BitsOf(row[d]) & 0x7fffffffu;
      shared = bits > shared ? bits : shared;
    }
    shared = LargestBits(shared);
    for (int block = 0; block < side.dim / 32; ++block) {
      const float x = row[block * 32 + lane];
      WriteKeyBlock<kBytes>(side.units, side.scales, head, piece.cell + i, block, x,
                            block < side.latent / 32 ? shared : LargestOf(x));
    }
  }
}

template <bool kBytes>
KVCACHE_DEVICE void StoreValueBlocks(const StoreSide& side, const StorePiece& piece, int head) {
  const int blocks = side.dim / 32;
  for (int i = Warp(); i < piece.count * blocks; i += StoreArgs::kThreads / 32) {
    const int row = i / blocks;
    const int block = i % blocks;
    WriteValueBlock<kBytes>(side.units, side.scales, head, piece.cell + row, block,
                            RowOf(side, head, piece.token + row)[block * 32 + Lane()]);
  }
}

// Stores a piece of a side. Shared memory: a row of K for each warp, if K is of a block type.
KVCACHE_DEVICE void StoreRows(const StoreSide& side, const StorePiece& piece, int head) {
  const bool key = side.hadamard != 0;
  if (side.type == DType::kQ8_0) {
    key ? StoreKeyBlocks<true>(side, piece, head, &SharedMemory<float>())
        : StoreValueBlocks<true>(side, piece, head);
  } else if (side.type == DType::kQ4_0) {
    key ? StoreKeyBlocks<false>(side, piece, head, &SharedMemory<float>())
        : StoreValueBlocks<false>(side, piece, head);
  } else {
    StoreFloats(side, piece, head);
  }
}

}  // namespace kvcache::cuda
