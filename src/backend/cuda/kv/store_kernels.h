// The arguments of store_kernels.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kv/cell_array.h"
#include "kvcache/types.h"

namespace kvcache::cuda {

// Batch tokens [token, token + count) go to the cells from `cell` on, which are in one tile.
struct StorePiece {
  std::int32_t token;
  std::int32_t cell;
  std::int32_t count;
};

// K or V: f32 rows, and where they go.
struct StoreSide {
  const std::byte* rows;
  std::int64_t head_bytes;   // from a head's row to the next head's
  std::int64_t token_bytes;  // from a token's row to the next token's
  CellArray units;
  CellArray scales;
  std::int32_t dim;
  // Size of the Hadamard matrix, and 1/√size; 0: the rows are stored as they are.
  std::int32_t hadamard;
  float hadamard_factor;
  // Latents: the first `latent` values are transformed by a matrix of their own and share a scale. 0: other keys.
  std::int32_t latent;
  std::int32_t latent_hadamard;
  float latent_factor;
  DType type;
};

struct StoreArgs {
  static constexpr int kThreads = 128;
  StoreSide sides[2];
  ArgumentList<StorePiece, 96> pieces;
};

}  // namespace kvcache::cuda
