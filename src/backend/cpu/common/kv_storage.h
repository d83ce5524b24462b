// The C++ type of one stored value of K or V, for the float types, and offsets in KvLayout::kTiled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/kv.h"

namespace kvcache::cpu {

template <DType kType>
struct StorageOf;
template <>
struct StorageOf<DType::kF32> {
  using Type = float;
};
template <>
struct StorageOf<DType::kF16> {
  using Type = std::uint16_t;
};
template <>
struct StorageOf<DType::kBF16> {
  using Type = std::uint16_t;
};
template <DType kType>
using Storage = typename StorageOf<kType>::Type;

constexpr bool IsKvType(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

template <class T>
constexpr T RoundUp(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Indices in KvLayout::kTiled, in values: the first key and value of a head, and, relative to the
// first key, the tile of keys ([k_dim][kCellTile]) with `cell`.
constexpr std::int64_t HeadKeys(const LayerKv& layer, int kv_head) {
  return kv_head * layer.cells * layer.shape.k_dim;
}
constexpr std::int64_t HeadValues(const LayerKv& layer, int kv_head) {
  return kv_head * layer.cells * layer.shape.v_dim;
}
constexpr std::int64_t KeyTile(const LayerKv& layer, std::int64_t cell) {
  return cell / kCellTile * kCellTile * layer.shape.k_dim;
}

}  // namespace kvcache::cpu
