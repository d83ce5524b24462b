// Lists of states: lookups find them with few questions, in every tier, and damaged lists are as none.
#include "engine/persist/state_index.h"

#include <gtest/gtest.h>

#include <numeric>

#include "store/store_testing.h"

namespace kvcache::state_index_test {
namespace {

class StateIndexTest : public ::testing::Test {
 protected:
  void SetUp() override { std::iota(tokens_.begin(), tokens_.end(), 7); }
  StoredPiece StateOf(Position length, std::uint64_t salt = 0) const {
    const auto chain = *keys_.Chain(tokens_, salt);
    const auto prefix = std::span(tokens_).first(static_cast<std::size_t>(length));
    return {*keys_.StateId(chain, prefix), 0, length};
  }
  void List(Store& store, Position length, std::uint64_t salt = 0) const {
    const auto chain = *keys_.Chain(tokens_, salt);
    const auto list = *keys_.ListId(chain[static_cast<std::size_t>(length) / 512]);
    ASSERT_TRUE(ListState(store, list, StateOf(length, salt)).ok());
  }
  std::vector<Position> Found(Store& store, Position min = 1, Position max = 4999,
                              std::uint64_t salt = 0) const {
    std::vector<Position> found;
    const Status status = ForEachState(store, keys_, tokens_, salt, min, max,
                                       [&](const StoredPiece& state) -> Result<bool> {
                                         EXPECT_EQ(state.id, StateOf(state.end, salt).id);
                                         found.push_back(state.end);
                                         return true;
                                       });
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCorrupt) << status.message();
    return found;
  }

  const PrefixKeys keys_ = *PrefixKeys::Make({});
  std::vector<std::int32_t> tokens_ = std::vector<std::int32_t>(5000);
  const std::shared_ptr<Store> store_ = std::move(*MakeMemoryStore());
};

TEST_F(StateIndexTest, FindsTheLongestFirst) {
  for (const Position length : {511, 512, 513, 20, 4999, 1024, 1023, 512}) List(*store_, length);
  EXPECT_EQ(Found(*store_), (std::vector<Position>{4999, 1024, 1023, 513, 512, 511, 20}));
  EXPECT_EQ(Found(*store_, 512, 1023), (std::vector<Position>{1023, 513, 512}));
  EXPECT_EQ(Found(*store_, 21, 510), std::vector<Position>{});
  EXPECT_EQ(Found(*store_, 1, 4999, 5), std::vector<Position>{}) << "another salt";
  // A prompt that parts after 1,000 tokens.
  for (std::size_t i = 1000; i < tokens_.size(); ++i) tokens_[i] += 1;
  EXPECT_EQ(Found(*store_), (std::vector<Position>{513, 512, 511, 20}));
}

TEST_F(StateIndexTest, KeepsTheLatest) {
  for (Position length = 16; length < 200; ++length) List(*store_, length);
  const auto found = Found(*store_);
  EXPECT_EQ(found.size(), 64U);
  EXPECT_EQ(found.front(), 199);
  EXPECT_EQ(found.back(), 136);
}

TEST_F(StateIndexTest, JoinsTheListsOfAllTiers) {
  const std::shared_ptr<Store> second = std::move(*MakeMemoryStore());
  const auto both = std::move(*MakeTieredStore({store_, second}));
  List(*store_, 100);
  List(*second, 200);
  EXPECT_EQ(Found(*both), (std::vector<Position>{200, 100}));
  List(*both, 300);
  EXPECT_EQ(Found(*store_), (std::vector<Position>{300, 200, 100}));
  EXPECT_EQ(Found(*second), (std::vector<Position>{300, 200, 100}));
}

TEST_F(StateIndexTest, AWrongListIsAsNone) {
  List(*store_, 100);
  const auto chain = *keys_.Chain(tokens_, 0);
  const ObjectId list = *keys_.ListId(chain[0]);
  auto bytes = *ReadObject(*store_, list);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_TRUE(store_->Put(list, std::span(bytes).first(size)).ok());
    EXPECT_EQ(Found(*store_), std::vector<Position>{});
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{0x80};
    ASSERT_TRUE(store_->Put(list, bytes).ok());
    EXPECT_EQ(Found(*store_), std::vector<Position>{});
    bytes[at] ^= std::byte{0x80};
  }
}

}  // namespace
}  // namespace kvcache::state_index_test
