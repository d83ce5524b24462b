#include "kvcache_engine/embedder.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

TEST(Embedder, NamesPoolings) {
  EXPECT_EQ(NameOf(Pooling::kNone), "none");
  EXPECT_EQ(NameOf(Pooling::kMean), "mean");
  EXPECT_EQ(NameOf(Pooling::kCls), "cls");
  EXPECT_EQ(NameOf(Pooling::kLast), "last");
  EXPECT_EQ(NameOf(Pooling::kRank), "rank");
}

}  // namespace
}  // namespace kvcache
