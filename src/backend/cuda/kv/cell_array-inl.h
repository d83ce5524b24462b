// Addresses of cells' parts, for kernels.
#pragma once

#include "backend/cuda/kv/cell_array.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// REQUIRES: no argument is negative.
KVCACHE_DEVICE std::byte* At(const CellArray& array, std::int64_t head, std::int32_t cell,
                             std::int32_t unit) {
  return array.data + head * array.head + (cell >> 4) * array.tile +
         ((cell >> 2) & 3) * array.quad + (cell & 3) * array.cell + (unit >> 4) * array.far_unit +
         (unit & 15) * array.unit;
}

template <class T, int kSize>
KVCACHE_DEVICE T At(const ArgumentList<T, kSize>& list, int i) {
  return list.far != nullptr ? list.far[i] : list.near[i];
}

}  // namespace kvcache::cuda
