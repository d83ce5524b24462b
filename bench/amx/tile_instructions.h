// Instructions of AMX's tiles for loops that measure them. Only for processors that have them.
//
// Thread safety: tiles belong to the thread.
#pragma once

#if defined(__x86_64__)
#include <cstdint>

namespace kvcache::bench {

inline constexpr std::int64_t kTileBytes = 1024;

// Four sums of products that do not depend on each other, of two tiles of each factor.
#define KVCACHE_FOUR_TILE_PRODUCTS     \
  "tdpbssd %%tmm6, %%tmm4, %%tmm0\n\t" \
  "tdpbssd %%tmm7, %%tmm4, %%tmm1\n\t" \
  "tdpbssd %%tmm6, %%tmm5, %%tmm2\n\t" \
  "tdpbssd %%tmm7, %%tmm5, %%tmm3\n\t"

// Configures the tiles of the thread as the kernels of linear layers do: 0 to 3 are sums of `rows` × 16, 4 and 5 first
// factors of `rows` × `inputs` bytes, 6 and 7 second factors.
class TilesOfShape {
 public:
  TilesOfShape(int rows, int inputs) {
    struct alignas(64) {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t tile_rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = static_cast<std::uint16_t>(tile == 4 || tile == 5 ? inputs : 64);
      config.tile_rows[tile] = static_cast<std::uint8_t>(tile < 6 ? rows : inputs / 4);
    }
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  ~TilesOfShape() { asm volatile("tilerelease" : : : "memory"); }
  TilesOfShape(const TilesOfShape&) = delete;
  TilesOfShape& operator=(const TilesOfShape&) = delete;
};

}  // namespace kvcache::bench
#endif
