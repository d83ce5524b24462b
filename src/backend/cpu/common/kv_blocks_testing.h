// Reads cached values of block types one at a time, for tests, by the formulas in kv_blocks.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/common/kv_blocks.h"
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

// Value d of a block, whose code is `byte` or half of it.
inline StoredInBlock StoredCode(DType type, const std::uint8_t* scale, std::uint8_t byte, int d) {
  if (type == DType::kQ8_0) return {ScaleAt(scale), byte - 128};
  return {ScaleAt(scale), (d % 32 < 16 ? byte & 15 : byte >> 4) - 8};
}

// Value d of a head's key in a cell, as stored: Hadamard-transformed.
inline StoredInBlock StoredKey(const LayerKv& layer, int head, std::int64_t cell, int d) {
  const DType type = layer.k_type;
  const std::int64_t dim = layer.shape.k_dim;
  const std::int64_t lane = cell % kCellTile;
  const auto* const tile = reinterpret_cast<const std::uint8_t*>(layer.k) +
                           BlockHeadKeys(layer, head) + BlockTile(type, dim, cell);
  const std::int64_t line = type == DType::kQ8_0 ? d / 4 : d / 32 * 4 + d % 16 / 4;
  return StoredCode(type, tile + BlockScale(type, dim, d / kKvBlock, lane),
                    tile[KeyCodes(line, lane) + d % 4], d);
}

// The places of the scale of a block of a head's value in a cell, and of value d's code.
struct ValuePlace {
  std::uint8_t* tile;
  std::int64_t scale;
  std::int64_t code;
};

inline ValuePlace PlaceOfValue(const LayerKv& layer, int head, std::int64_t cell, int d) {
  const DType type = layer.v_type;
  const std::int64_t dim = layer.shape.v_dim;
  const std::int64_t lane = cell % kCellTile;
  const std::int64_t i = type == DType::kQ8_0 ? d % 32 : d % 16;
  return {reinterpret_cast<std::uint8_t*>(layer.v) + BlockHeadValues(layer, head) +
              BlockTile(type, dim, cell),
          BlockScale(type, dim, d / kKvBlock, lane), ValueCode(type, d / kKvBlock, i, lane)};
}

// Value d of a head's value in a cell.
inline StoredInBlock StoredValue(const LayerKv& layer, int head, std::int64_t cell, int d) {
  const ValuePlace at = PlaceOfValue(layer, head, cell, d);
  return StoredCode(layer.v_type, at.tile + at.scale, at.tile[at.code], d);
}

// Of the block that holds value d.
inline void SetValueScale(const LayerKv& layer, int head, std::int64_t cell, int d, float scale) {
  const ValuePlace at = PlaceOfValue(layer, head, cell, d);
  const std::uint16_t half = F32ToF16(scale);
  std::memcpy(at.tile + at.scale, &half, sizeof half);
}

inline void SetValueCode(const LayerKv& layer, int head, std::int64_t cell, int d, int code) {
  const ValuePlace at = PlaceOfValue(layer, head, cell, d);
  std::uint8_t& byte = at.tile[at.code];
  if (layer.v_type == DType::kQ8_0) {
    byte = static_cast<std::uint8_t>(code + 128);
  } else if (d % 32 < 16) {
    byte = static_cast<std::uint8_t>((byte & 0xf0) | (code + 8));
  } else {
    byte = static_cast<std::uint8_t>((byte & 0x0f) | (code + 8) << 4);
  }
}

}  // namespace kvcache::cpu
