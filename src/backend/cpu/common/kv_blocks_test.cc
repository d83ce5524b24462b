// Checks that the offsets of block types give each byte of a tile exactly one meaning.
#include "backend/cpu/common/kv_blocks.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace kvcache::cpu::kv_blocks_test {
namespace {

// Counts how often the offsets name each byte of a tile.
class Uses {
 public:
  Uses(DType type, std::int64_t dim)
      : count_(static_cast<std::size_t>(BlockTileBytes(type, dim)), 0) {}
  void Take(std::int64_t offset, std::int64_t bytes) {
    for (std::int64_t i = offset; i < offset + bytes; ++i) ++count_.at(static_cast<std::size_t>(i));
  }
  bool AllOnce() const {
    return std::all_of(count_.begin(), count_.end(), [](int count) { return count == 1; });
  }

 private:
  std::vector<int> count_;
};

TEST(KvBlocks, KeysUseEachByteOnce) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    for (const std::int64_t dim : {32, 64, 96, 128, 576}) {
      Uses uses(type, dim);
      for (int lane = 0; lane < kCellTile; ++lane) {
        for (int line = 0; line < CodeBytes(type, dim) / 4; ++line) {
          uses.Take(KeyCodes(line, lane), 4);
        }
        for (int b = 0; b < dim / kKvBlock; ++b) uses.Take(BlockScale(type, dim, b, lane), 2);
      }
      EXPECT_TRUE(uses.AllOnce()) << InfoOf(type).name << " " << dim;
    }
  }
}

TEST(KvBlocks, ValuesUseEachByteOnce) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    for (const std::int64_t dim : {32, 64, 96, 128, 576}) {
      Uses uses(type, dim);
      for (int lane = 0; lane < kCellTile; ++lane) {
        for (int b = 0; b < dim / kKvBlock; ++b) {
          for (int i = 0; i < CodeBytes(type, kKvBlock); ++i) {
            uses.Take(ValueCode(type, b, i, lane), 1);
          }
          uses.Take(BlockScale(type, dim, b, lane), 2);
        }
      }
      EXPECT_TRUE(uses.AllOnce()) << InfoOf(type).name << " " << dim;
    }
  }
}

TEST(KvBlocks, TilesFollowOneAnotherWithinHeads) {
  const LayerKv layer{.shape = {3, 64, 96},
                      .k_type = DType::kQ8_0,
                      .v_type = DType::kQ4_0,
                      .layout = KvLayout::kTiled,
                      .cells = 48};
  EXPECT_EQ(BlockTileBytes(DType::kQ8_0, 64), 16 * 2 * 34);
  EXPECT_EQ(BlockTileBytes(DType::kQ4_0, 96), 16 * 3 * 18);
  EXPECT_EQ(BlockTile(DType::kQ8_0, 64, 15), 0);
  EXPECT_EQ(BlockTile(DType::kQ8_0, 64, 33), 2 * 16 * 2 * 34);
  EXPECT_EQ(BlockHeadKeys(layer, 2), 2 * 48 * 2 * 34);
  EXPECT_EQ(BlockHeadValues(layer, 1), 48 * 3 * 18);
  EXPECT_EQ(BlockHeadKeys(layer, 3), layer.KBytes());
  EXPECT_EQ(BlockHeadValues(layer, 3), layer.VBytes());
}

// A line of keys' codes has a 32-bit lane per cell, a line of values' codes one per value.
TEST(KvBlocks, LinesAreSixtyFourBytes) {
  EXPECT_EQ(ValueCode(DType::kQ8_0, 1, 0, 0) - ValueCode(DType::kQ8_0, 0, 0, 0), 512);
  EXPECT_EQ(ValueCode(DType::kQ8_0, 0, 17, 6), 5 * 64 + 4 + 2);
  EXPECT_EQ(ValueCode(DType::kQ4_0, 1, 3, 6), 5 * 64 + 12 + 2);
  EXPECT_EQ(KeyCodes(1, 0) - KeyCodes(0, 0), 64);
  EXPECT_EQ(KeyCodes(0, 15), 60);
  EXPECT_EQ(BlockScale(DType::kQ8_0, 64, 0, 0), KeyCodes(16, 0));
  EXPECT_EQ(BlockScale(DType::kQ4_0, 64, 1, 3), KeyCodes(8, 0) + 32 + 6);
}

}  // namespace
}  // namespace kvcache::cpu::kv_blocks_test
