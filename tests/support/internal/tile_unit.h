// The tiles of AMX in software: what LDTILECFG, TILELOADD, TDPBSSD and their neighbours do to them, and what a processor
// refuses. Independent of how an instruction is coded (tile_instruction.h).
//
// Thread safety: one thread at a time. Nothing allocates, so a signal handler may call it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvcache::testing {

inline constexpr int kTiles = 8;
inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;
inline constexpr int kTileConfigBytes = 64;

// Which bytes of a product have signs: those of the first factor, those of the second.
struct ByteSigns {
  bool first = false;
  bool second = false;
};

// Each function returns what a processor would fault on, or null.
class TileUnit {
 public:
  using Fault = const char*;

  // `config`: 64 bytes, as LDTILECFG reads them. All tiles become zero.
  Fault LoadConfig(const std::byte* config);
  void StoreConfig(std::byte* config) const;
  void Release();

  Fault Zero(int tile);
  // Row r of the tile is at `first` + r × `stride` bytes.
  Fault Load(int tile, const std::byte* first, std::int64_t stride);
  Fault Store(int tile, std::byte* first, std::int64_t stride);
  // sum[m][n] += Σ_k first[m][k] × second[k / 4][4 n + k % 4], in 32 bits that wrap.
  Fault AddProducts(int sum, int first, int second, ByteSigns signs);

  // 0 if no tile is configured.
  int Rows(int tile) const { return rows_[static_cast<std::size_t>(tile)]; }
  int RowBytes(int tile) const { return row_bytes_[static_cast<std::size_t>(tile)]; }

 private:
  using Tile = std::array<std::array<std::byte, kTileRowBytes>, kTileRows>;

  Fault CheckUse(int tile) const;
  Fault CheckFactors(int sum, int first, int second) const;

  bool configured_ = false;
  std::array<std::uint8_t, kTiles> rows_{};
  std::array<std::uint8_t, kTiles> row_bytes_{};
  std::array<Tile, kTiles> tiles_{};
};

}  // namespace kvcache::testing
