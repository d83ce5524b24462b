#include "support/internal/tile_unit.h"

#include <cstring>

namespace kvcache::testing {
namespace {

// The 64 bytes of a configuration.
struct TileConfig {
  std::uint8_t palette;
  std::uint8_t start_row;
  std::uint8_t reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == kTileConfigBytes);

TileUnit::Fault CheckConfig(const TileConfig& config) {
  if (config.palette > 1) return "the palette is neither 0 nor 1";
  if (config.palette == 0) return nullptr;  // a processor releases the tiles and ignores the rest
  if (config.start_row != 0) return "the row to start at is not 0, which is for interrupted loads";
  for (const std::uint8_t byte : config.reserved) {
    if (byte != 0) return "a reserved byte is not 0";
  }
  for (int i = 0; i < 16; ++i) {
    const int rows = config.rows[i];
    const int bytes = config.row_bytes[i];
    if (i >= kTiles && (rows != 0 || bytes != 0)) return "palette 1 has eight tiles";
    if (rows > kTileRows) return "a tile has more than 16 rows";
    if (bytes > kTileRowBytes) return "a tile has rows of more than 64 bytes";
    if ((rows == 0) != (bytes == 0)) return "a tile has rows without bytes, or bytes without rows";
  }
  return nullptr;
}

// A byte of a factor as an integer.
template <bool kSigned>
std::int32_t IntegerOf(std::byte byte) {
  return kSigned ? static_cast<std::int8_t>(byte) : static_cast<std::uint8_t>(byte);
}

// Adds the products of four bytes of one row with a row of the second factor.
template <bool kFirstSigned, bool kSecondSigned>
void AddRow(const std::byte* four, const std::byte* row, int sums, std::byte* sum) {
  const std::int32_t a0 = IntegerOf<kFirstSigned>(four[0]);
  const std::int32_t a1 = IntegerOf<kFirstSigned>(four[1]);
  const std::int32_t a2 = IntegerOf<kFirstSigned>(four[2]);
  const std::int32_t a3 = IntegerOf<kFirstSigned>(four[3]);
  for (int n = 0; n < sums; ++n) {
    const std::byte* const b = row + 4 * n;
    std::uint32_t value;
    std::memcpy(&value, sum + 4 * n, 4);
    value += static_cast<std::uint32_t>(
        a0 * IntegerOf<kSecondSigned>(b[0]) + a1 * IntegerOf<kSecondSigned>(b[1]) +
        a2 * IntegerOf<kSecondSigned>(b[2]) + a3 * IntegerOf<kSecondSigned>(b[3]));
    std::memcpy(sum + 4 * n, &value, 4);
  }
}

using AddRowFunction = void (*)(const std::byte*, const std::byte*, int, std::byte*);

AddRowFunction AddRowOf(ByteSigns signs) {
  if (signs.first) return signs.second ? AddRow<true, true> : AddRow<true, false>;
  return signs.second ? AddRow<false, true> : AddRow<false, false>;
}

}  // namespace

TileUnit::Fault TileUnit::LoadConfig(const std::byte* config) {
  TileConfig loaded;
  std::memcpy(&loaded, config, sizeof(loaded));
  if (const Fault fault = CheckConfig(loaded)) return fault;
  Release();
  if (loaded.palette == 0) return nullptr;
  configured_ = true;
  for (std::size_t i = 0; i < kTiles; ++i) {
    rows_[i] = loaded.rows[i];
    row_bytes_[i] = static_cast<std::uint8_t>(loaded.row_bytes[i]);
  }
  return nullptr;
}

void TileUnit::StoreConfig(std::byte* config) const {
  TileConfig stored{};
  stored.palette = configured_ ? 1 : 0;
  for (std::size_t i = 0; i < kTiles; ++i) {
    stored.rows[i] = rows_[i];
    stored.row_bytes[i] = row_bytes_[i];
  }
  std::memcpy(config, &stored, sizeof(stored));
}

void TileUnit::Release() {
  configured_ = false;
  rows_.fill(0);
  row_bytes_.fill(0);
  std::memset(tiles_.data(), 0, sizeof(tiles_));
}

TileUnit::Fault TileUnit::CheckUse(int tile) const {
  if (!configured_) return "no tiles are configured";
  if (Rows(tile) == 0) return "the tile has no rows in the configuration";
  return nullptr;
}

TileUnit::Fault TileUnit::Zero(int tile) {
  if (const Fault fault = CheckUse(tile)) return fault;
  tiles_[static_cast<std::size_t>(tile)] = Tile{};
  return nullptr;
}

TileUnit::Fault TileUnit::Load(int tile, const std::byte* first, std::int64_t stride) {
  if (const Fault fault = Zero(tile)) return fault;
  for (int r = 0; r < Rows(tile); ++r) {
    std::memcpy(tiles_[static_cast<std::size_t>(tile)][static_cast<std::size_t>(r)].data(),
                first + r * stride, static_cast<std::size_t>(RowBytes(tile)));
  }
  return nullptr;
}

TileUnit::Fault TileUnit::Store(int tile, std::byte* first, std::int64_t stride) {
  if (const Fault fault = CheckUse(tile)) return fault;
  for (int r = 0; r < Rows(tile); ++r) {
    std::memcpy(first + r * stride,
                tiles_[static_cast<std::size_t>(tile)][static_cast<std::size_t>(r)].data(),
                static_cast<std::size_t>(RowBytes(tile)));
  }
  return nullptr;
}

TileUnit::Fault TileUnit::CheckFactors(int sum, int first, int second) const {
  for (const int tile : {sum, first, second}) {
    if (const Fault fault = CheckUse(tile)) return fault;
    if (RowBytes(tile) % 4 != 0) return "a row is not a multiple of four bytes";
  }
  if (sum == first || sum == second || first == second)
    return "two of the three tiles are the same";
  if (Rows(sum) != Rows(first)) return "the sums and the first factor differ in rows";
  if (RowBytes(sum) != RowBytes(second)) return "the sums and the second factor differ in columns";
  if (RowBytes(first) != 4 * Rows(second)) return "the factors differ in their common dimension";
  return nullptr;
}

TileUnit::Fault TileUnit::AddProducts(int sum, int first, int second, ByteSigns signs) {
  if (const Fault fault = CheckFactors(sum, first, second)) return fault;
  Tile& c = tiles_[static_cast<std::size_t>(sum)];
  const Tile& a = tiles_[static_cast<std::size_t>(first)];
  const Tile& b = tiles_[static_cast<std::size_t>(second)];
  const AddRowFunction add = AddRowOf(signs);
  for (std::size_t m = 0; m < rows_[static_cast<std::size_t>(sum)]; ++m) {
    for (std::size_t k = 0; k < rows_[static_cast<std::size_t>(second)]; ++k) {
      add(a[m].data() + 4 * k, b[k].data(), RowBytes(sum) / 4, c[m].data());
    }
  }
  return nullptr;
}

}  // namespace kvcache::testing
