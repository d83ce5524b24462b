#include "support/internal/tile_unit.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace kvcache::tile_unit_test {
namespace {

using testing::ByteSigns;
using testing::TileUnit;

struct Config {
  std::array<std::byte, testing::kTileConfigBytes> bytes{};

  Config() { bytes[0] = std::byte{1}; }
  Config& Set(std::size_t tile, int rows, int row_bytes) {
    bytes[16 + 2 * tile] = static_cast<std::byte>(row_bytes);
    bytes[48 + tile] = static_cast<std::byte>(rows);
    return *this;
  }
};

std::string FaultOf(const Config& config) {
  TileUnit unit;
  const TileUnit::Fault fault = unit.LoadConfig(config.bytes.data());
  return fault == nullptr ? "" : fault;
}

std::vector<std::byte> RandomBytes(std::size_t count, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
  return bytes;
}

int ValueOf(std::byte byte, bool is_signed) {
  const int value = static_cast<int>(byte);
  return is_signed && value > 127 ? value - 256 : value;
}

TEST(TileUnitTest, LoadsAndStoresTheConfiguredPart) {
  TileUnit unit;
  ASSERT_EQ(unit.LoadConfig(Config().Set(3, 5, 24).bytes.data()), nullptr);
  const auto from = RandomBytes(5 * 40, 1);
  ASSERT_EQ(unit.Load(3, from.data(), 40), nullptr);
  std::vector<std::byte> to(5 * 32, std::byte{9});
  ASSERT_EQ(unit.Store(3, to.data(), 32), nullptr);
  for (std::size_t r = 0; r < 5; ++r) {
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(to[r * 32 + i], i < 24 ? from[r * 40 + i] : std::byte{9}) << r << ", " << i;
    }
  }
}

TEST(TileUnitTest, ProductsAreThoseOfPlainLoops) {
  constexpr std::size_t kRows = 7, kInputs = 24, kColumns = 11;
  for (const ByteSigns signs : {ByteSigns{}, {true, false}, {false, true}, {true, true}}) {
    TileUnit unit;
    ASSERT_EQ(unit.LoadConfig(Config()
                                  .Set(0, kRows, 4 * kColumns)
                                  .Set(1, kRows, kInputs)
                                  .Set(2, kInputs / 4, 4 * kColumns)
                                  .bytes.data()),
              nullptr);
    auto c = RandomBytes(kRows * 4 * kColumns, 1);
    const auto a = RandomBytes(kRows * kInputs, 2);
    const auto b = RandomBytes(kInputs * kColumns, 3);
    ASSERT_EQ(unit.Load(0, c.data(), 4 * kColumns), nullptr);
    ASSERT_EQ(unit.Load(1, a.data(), kInputs), nullptr);
    ASSERT_EQ(unit.Load(2, b.data(), 4 * kColumns), nullptr);
    ASSERT_EQ(unit.AddProducts(0, 1, 2, signs), nullptr);
    std::vector<std::byte> sums(c.size());
    ASSERT_EQ(unit.Store(0, sums.data(), 4 * kColumns), nullptr);
    for (std::size_t m = 0; m < kRows; ++m) {
      for (std::size_t n = 0; n < kColumns; ++n) {
        std::uint32_t sum, actual;
        std::memcpy(&sum, &c[(m * kColumns + n) * 4], 4);
        std::memcpy(&actual, &sums[(m * kColumns + n) * 4], 4);
        for (std::size_t k = 0; k < kInputs; ++k) {
          sum += static_cast<std::uint32_t>(
              ValueOf(a[m * kInputs + k], signs.first) *
              ValueOf(b[k / 4 * 4 * kColumns + 4 * n + k % 4], signs.second));
        }
        ASSERT_EQ(actual, sum) << m << ", " << n << ", signs " << signs.first << signs.second;
      }
    }
  }
}

TEST(TileUnitTest, SumsStartAtZeroAfterZero) {
  TileUnit unit;
  ASSERT_EQ(unit.LoadConfig(Config().Set(0, 1, 4).bytes.data()), nullptr);
  std::uint32_t value = 7;
  ASSERT_EQ(unit.Load(0, reinterpret_cast<const std::byte*>(&value), 4), nullptr);
  ASSERT_EQ(unit.Zero(0), nullptr);
  ASSERT_EQ(unit.Store(0, reinterpret_cast<std::byte*>(&value), 4), nullptr);
  EXPECT_EQ(value, 0u);
}

TEST(TileUnitTest, TheConfigurationCanBeReadBack) {
  TileUnit unit;
  const Config config = Config().Set(0, 16, 64).Set(7, 3, 12);
  ASSERT_EQ(unit.LoadConfig(config.bytes.data()), nullptr);
  Config stored;
  unit.StoreConfig(stored.bytes.data());
  EXPECT_EQ(stored.bytes, config.bytes);
  unit.Release();
  unit.StoreConfig(stored.bytes.data());
  EXPECT_EQ(stored.bytes, decltype(stored.bytes){});
}

TEST(TileUnitTest, RefusesConfigurationsThatAProcessorRefuses) {
  EXPECT_EQ(FaultOf(Config().Set(0, 16, 64).Set(7, 1, 4)), "");
  EXPECT_NE(FaultOf(Config().Set(0, 17, 64)), "");
  EXPECT_NE(FaultOf(Config().Set(0, 16, 68)), "");
  EXPECT_NE(FaultOf(Config().Set(0, 0, 64)), "");
  EXPECT_NE(FaultOf(Config().Set(0, 16, 0)), "");
  EXPECT_NE(FaultOf(Config().Set(8, 1, 4)), "");
  for (const std::size_t at : {0, 1, 2, 15}) {  // palette, row, reserved
    Config config;
    config.bytes[at] = std::byte{2};
    EXPECT_NE(FaultOf(config), "") << at;
  }
}

TEST(TileUnitTest, ThePaletteThatReleasesTilesIgnoresTheRest) {
  TileUnit unit;
  ASSERT_EQ(unit.LoadConfig(Config().Set(0, 16, 64).bytes.data()), nullptr);
  Config release = Config().Set(8, 17, 68);
  for (const std::size_t at : {1, 2, 15}) release.bytes[at] = std::byte{1};
  release.bytes[0] = std::byte{0};
  EXPECT_EQ(unit.LoadConfig(release.bytes.data()), nullptr);
  EXPECT_NE(unit.Zero(0), nullptr);
}

TEST(TileUnitTest, ARefusedConfigurationKeepsTheOldOne) {
  TileUnit unit;
  ASSERT_EQ(unit.LoadConfig(Config().Set(0, 2, 8).bytes.data()), nullptr);
  ASSERT_NE(unit.LoadConfig(Config().Set(0, 17, 8).bytes.data()), nullptr);
  EXPECT_EQ(unit.Rows(0), 2);
  EXPECT_EQ(unit.RowBytes(0), 8);
}

TEST(TileUnitTest, RefusesTilesThatAreNotConfigured) {
  TileUnit unit;
  std::array<std::byte, 1024> memory{};
  EXPECT_NE(unit.Zero(0), nullptr);
  ASSERT_EQ(unit.LoadConfig(Config().Set(0, 16, 64).bytes.data()), nullptr);
  EXPECT_EQ(unit.Zero(0), nullptr);
  EXPECT_NE(unit.Zero(1), nullptr);
  EXPECT_NE(unit.Load(1, memory.data(), 64), nullptr);
  EXPECT_NE(unit.Store(1, memory.data(), 64), nullptr);
  unit.Release();
  EXPECT_NE(unit.Load(0, memory.data(), 64), nullptr);
  Config none;
  none.bytes[0] = std::byte{0};  // palette 0
  ASSERT_EQ(unit.LoadConfig(none.bytes.data()), nullptr);
  EXPECT_NE(unit.Zero(0), nullptr);
}

struct Shapes {
  const char* what;
  int sum_rows, sum_bytes, first_rows, first_bytes, second_rows, second_bytes;
};

TEST(TileUnitTest, RefusesFactorsThatDoNotFit) {
  for (const Shapes& s : {Shapes{"rows of the first", 4, 64, 5, 32, 8, 64},
                          Shapes{"columns of the second", 4, 64, 4, 32, 8, 60},
                          Shapes{"common dimension", 4, 64, 4, 36, 8, 64},
                          Shapes{"bytes that are no fours", 4, 62, 4, 32, 8, 62}}) {
    TileUnit unit;
    const Config config = Config()
                              .Set(0, s.sum_rows, s.sum_bytes)
                              .Set(1, s.first_rows, s.first_bytes)
                              .Set(2, s.second_rows, s.second_bytes);
    ASSERT_EQ(unit.LoadConfig(config.bytes.data()), nullptr);
    EXPECT_NE(unit.AddProducts(0, 1, 2, {}), nullptr) << s.what;
  }
  TileUnit unit;
  const Config square = Config().Set(0, 16, 64).Set(1, 16, 64).Set(2, 16, 64);
  ASSERT_EQ(unit.LoadConfig(square.bytes.data()), nullptr);
  EXPECT_EQ(unit.AddProducts(0, 1, 2, {}), nullptr);
  EXPECT_NE(unit.AddProducts(0, 0, 2, {}), nullptr);
  EXPECT_NE(unit.AddProducts(0, 1, 0, {}), nullptr);
  EXPECT_NE(unit.AddProducts(0, 1, 1, {}), nullptr);
  EXPECT_NE(unit.AddProducts(0, 1, 3, {}), nullptr);
}

}  // namespace
}  // namespace kvcache::tile_unit_test
