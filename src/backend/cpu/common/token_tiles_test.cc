#include "backend/cpu/common/token_tiles.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvcache::cpu {
namespace {

TEST(TokenTilesTest, CoverTheBatchInTilesOfNearlyEqualSize) {
  for (std::int64_t tokens = 1; tokens <= 100; ++tokens) {
    for (const std::int64_t max_size : {1, 2, 6, 14}) {
      const TokenTiles tiles(tokens, max_size);
      EXPECT_EQ(tiles.Begin(0), 0);
      EXPECT_EQ(tiles.Begin(tiles.count()), tokens);
      for (std::int64_t i = 0; i < tiles.count(); ++i) {
        ASSERT_EQ(tiles.Begin(i + 1) - tiles.Begin(i), tiles.Size(i));
        ASSERT_LE(tiles.Size(i), max_size);
        ASSERT_GE(tiles.Size(i), tiles.Size(0) - 1);
        for (std::int64_t t = tiles.Begin(i); t < tiles.Begin(i + 1); ++t) {
          ASSERT_EQ(tiles.TileOf(t), i);
        }
      }
    }
  }
  EXPECT_EQ(TokenTiles(0, 6).count(), 0);
}

}  // namespace
}  // namespace kvcache::cpu
