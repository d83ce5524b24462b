// The registers of AMX: eight tiles of 16 rows × 64 bytes, and their instructions.
//
// The instructions are assembly: the intrinsics of compilers take the number of a register as a literal only. Assembly
// needs no attribute for AMX. Compiled for AVX3_DL alone.
#if defined(KVCACHE_BACKEND_CPU_COMMON_TILE_REGISTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_COMMON_TILE_REGISTERS_INL_H_
#undef KVCACHE_BACKEND_CPU_COMMON_TILE_REGISTERS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_COMMON_TILE_REGISTERS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "backend/cpu/common/block_bytes-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

// What LDTILECFG reads.
struct alignas(64) MatrixTileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void Set(std::size_t tile, std::int64_t tile_rows, std::int64_t tile_row_bytes) {
    rows[tile] = static_cast<std::uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<std::uint16_t>(tile_row_bytes);
  }
};

// Gives a thread its tiles while the object lives: for a task of a linear layer, or for a tile of queries of attention,
// whose softmax and sums of values run between the products. Elsewhere no tile is configured, so switching threads saves
// none, and no other code can depend on tiles.
class ConfiguredTiles {
 public:
  explicit HWY_INLINE ConfiguredTiles(const MatrixTileShapes& shapes) {
    asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
  }
  HWY_INLINE ~ConfiguredTiles() { asm volatile("tilerelease" : : : "memory"); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
};

template <int kTile>
HWY_INLINE void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// The bytes between the rows of tiles: of inputs, and of weights and sums. They are in registers before the first
// instruction of a product: its instructions then follow each other, and an emulator runs them all at once.
struct TileStrides {
  std::int64_t inputs = kBlock;
  std::int64_t lines = kLine;
  HWY_INLINE TileStrides() { asm("" : "+r"(inputs), "+r"(lines)); }
};

// Row r of the tile is at `first` + kOffset + r × `stride` bytes. The offset is a part of the instruction.
template <int kTile, std::int64_t kOffset = 0>
HWY_INLINE void LoadTile(const void* first, std::int64_t stride) {
  asm volatile("tileloadd %c3(%0,%1,1), %%tmm%c2"
               :
               : "r"(first), "r"(stride), "i"(kTile), "i"(kOffset)
               : "memory");
}

template <int kTile, std::int64_t kOffset = 0>
HWY_INLINE void StoreTile(void* first, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, %c3(%0,%1,1)"
               :
               : "r"(first), "r"(stride), "i"(kTile), "i"(kOffset)
               : "memory");
}

// Whether the bytes of the second factor have a sign. Those of the first have one.
enum class SecondFactor : std::uint8_t { kSigned, kUnsigned };

// sum += first × second. A row of `second` has four bytes of each column.
template <int kSum, int kFirst, int kSecond, SecondFactor kFactor = SecondFactor::kSigned>
HWY_INLINE void AddTileProducts() {
  if constexpr (kFactor == SecondFactor::kSigned) {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kFirst), "i"(kSecond));
  } else {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kFirst), "i"(kSecond));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL

#endif  // per-target include guard
