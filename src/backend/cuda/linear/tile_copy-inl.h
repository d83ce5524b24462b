// Copies of what several tiles or panels have of a pair of inputs, for kernels with many columns.
#pragma once

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

// Copies kBytes of each of kTiles tiles to shared memory, 16 by 16, pair by pair.
template <int kTiles, int kBytes>
class TileCopy {
 public:
  // `stride`: bytes from tile to tile. Tiles behind the last one are copies of it; their products are not
  // stored.
  KVCACHE_DEVICE TileCopy(const void* array, std::int64_t stride, int first_tile, int last_tile) {
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const int unit = i * kManyThreads + Thread();
      const int wanted = first_tile + unit / kUnits;
      const int tile = wanted < last_tile ? wanted : last_tile;
      from_[i] = static_cast<const std::byte*>(array) + tile * stride + unit % kUnits * 16;
    }
  }

  // Starts the copies of what is `offset` bytes behind the tiles' first bytes; kSome bytes of each tile.
  template <int kSome = kBytes>
  KVCACHE_DEVICE void Start(std::byte* to, int offset) const {
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const int unit = i * kManyThreads + Thread();
      if (kAll % kManyThreads != 0 && unit >= kAll) break;
      if (kSome < kBytes && unit % kUnits * 16 >= kSome) continue;
      AsyncCopy16(to + unit * 16, from_[i] + offset);
    }
  }

  KVCACHE_DEVICE void Advance(int bytes) {
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) from_[i] += bytes;
  }

 private:
  static constexpr int kUnits = kBytes / 16;  // of a tile
  static constexpr int kAll = kTiles * kUnits;
  static constexpr int kSteps = (kAll + kManyThreads - 1) / kManyThreads;
  const std::byte* from_[kSteps];
};

template <int kTiles>
class TileCopy<kTiles, 0> {
 public:
  KVCACHE_DEVICE TileCopy(const void*, std::int64_t, int, int) {}
  KVCACHE_DEVICE void Start(std::byte*, int) const {}
  KVCACHE_DEVICE void Advance(int) {}
};

}  // namespace kvcache::cuda::linear
