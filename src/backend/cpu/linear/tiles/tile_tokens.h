// How many tokens a call multiplies with matrix tiles (AMX), and in tiles of how many tokens its inputs are stored.
//
// Thread safety: as TilesInUse.
#pragma once

#include <cstdint>

#include "backend/cpu/cpu_tiles.h"

namespace kvcache::cpu::block {

// The rows of a matrix tile.
inline constexpr std::int64_t kMatrixTileTokens = 16;
// Fewer tokens leave so many rows of a tile empty that vectors are as fast.
inline constexpr std::int64_t kMinMatrixTokens = 8;

inline bool UsesMatrixTiles(std::int64_t tokens) {
  return tokens >= kMinMatrixTokens && TilesInUse();
}

// The most tokens of a tile of QuantizedX, where kernels without matrix tiles take `most`.
inline std::int64_t TokensOfTile(std::int64_t tokens, std::int64_t most) {
  return UsesMatrixTiles(tokens) ? kMatrixTileTokens : most;
}

}  // namespace kvcache::cpu::block
