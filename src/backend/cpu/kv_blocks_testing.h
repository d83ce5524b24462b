// Reads what a cache keeps in blocks, one value at a time, for tests: from the bytes where
// kv_blocks.h says they are.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/kv_blocks.h"
#include "tensor/float_conversion.h"

namespace kvcache::cpu {

struct StoredInBlock {
  float scale = 0.0f;
  std::int32_t code = 0;
  float Value() const { return scale * static_cast<float>(code); }
};

inline float ScaleAt(const std::uint8_t* at) {
  std::uint16_t scale = 0;
  std::memcpy(&scale, at, sizeof scale);
  return F16ToF32(scale);
}

// Value d of a head's key in a cell, turned as it is kept.
inline StoredInBlock StoredKey(const LayerKv& layer, int head, std::int64_t cell, int d) {
  const DType type = layer.k_type;
  const std::int64_t dim = layer.shape.k_dim;
  const std::int64_t lane = cell % kCellTile;
  const auto* const tile = reinterpret_cast<const std::uint8_t*>(layer.k) +
                           BlockHeadKeys(layer, head) + BlockTile(type, dim, cell);
  const float scale = ScaleAt(tile + KeyScale(type, dim, d / kKvBlock, lane));
  if (type == DType::kQ8_0) return {scale, tile[KeyCodes(d / 4, lane) + d % 4] - 128};
  const std::uint8_t both = tile[KeyCodes(d / 32 * 4 + d % 16 / 4, lane) + d % 4];
  return {scale, (d % 32 < 16 ? both & 15 : both >> 4) - 8};
}

// Value d of a head's value in a cell.
inline StoredInBlock StoredValue(const LayerKv& layer, int head, std::int64_t cell, int d) {
  const DType type = layer.v_type;
  const std::int64_t dim = layer.shape.v_dim;
  const std::int64_t lane = cell % kCellTile;
  const auto* const tile = reinterpret_cast<const std::uint8_t*>(layer.v) +
                           BlockHeadValues(layer, head) + BlockTile(type, dim, cell);
  const float scale = ScaleAt(tile + ValueScale(type, dim, d / kKvBlock, lane));
  const std::uint8_t* const codes = tile + ValueCodes(type, dim, lane);
  if (type == DType::kQ8_0) return {scale, static_cast<std::int8_t>(codes[d])};
  const std::uint8_t both = codes[d / 32 * 16 + d % 16];
  return {scale, (d % 32 < 16 ? both & 15 : both >> 4) - 8};
}

}  // namespace kvcache::cpu
