#include "server/models/pin_book.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/prefixes/token_keys.h"

namespace kvcache::server::pin_book_test {
namespace {

class NoStates final : public PrefixStates {
 public:
  void Drop(PrefixState /*state*/) override {}
  bool Truncate(PrefixState /*state*/, Position /*length*/) override { return true; }
};

class PinBookTest : public ::testing::Test {
 protected:
  using Tokens = std::vector<std::int32_t>;

  void SetUp() override {
    auto cache = PrefixCache::Make(states_, {});
    ASSERT_TRUE(cache.ok());
    cache_ = std::move(*cache);
  }
  static Tokens Some(int first, std::size_t count) {
    Tokens tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  void Know(const Tokens& tokens, double now) {
    const auto plan = cache_->Begin({.keys = KeysOf(tokens)}, now);
    ASSERT_TRUE(plan.ok());
    ASSERT_TRUE(cache_->Extend(plan->request, static_cast<Position>(tokens.size()), ++state_).ok());
    cache_->Close(plan->request, now);
  }
  // Lets go of everything that may go, and returns how much is left.
  std::int64_t Left() {
    while (cache_->Evict(1 << 20) >= 0) {
    }
    return cache_->Stats().tokens;
  }

  NoStates states_;
  std::unique_ptr<PrefixCache> cache_;
  struct Next {
    std::uint64_t value = 0;
    PrefixState operator++() { return PrefixState{++value}; }
  } state_;
};

TEST_F(PinBookTest, KeepsUntilTheTime) {
  PinBook book(*cache_, 100);
  Know(Some(0, 30), 1.0);
  Know(Some(1000, 30), 2.0);
  book.Pin(Some(0, 30), 10.0, 2.0);
  EXPECT_EQ(Left(), 30);
  Know(Some(2000, 5), 11.0);
  EXPECT_EQ(Left(), 0);
}

TEST_F(PinBookTest, StaysWithinItsBound) {
  PinBook book(*cache_, 70);
  for (int i = 0; i < 4; ++i) {
    Know(Some(1000 * i, 30), 1.0 + i);
    book.Pin(Some(1000 * i, 30), 100.0 - i, 1.0 + i);
    EXPECT_LE(book.tokens(), 70);
  }
  book.Pin(Some(5000, 80), 200.0, 5.0);  // too long
  EXPECT_EQ(book.tokens(), 60);
  EXPECT_EQ(Left(), 60);
  book.Clear(6.0);
  Know(Some(7000, 5), 7.0);
  EXPECT_EQ(Left(), 0);
}

TEST_F(PinBookTest, AConversationThatGrowsCountsOnce) {
  PinBook book(*cache_, 100);
  for (std::size_t length = 10; length <= 90; length += 10) {
    Know(Some(0, length), static_cast<double>(length));
    book.Pin(Some(0, length), 300.0 + static_cast<double>(length), static_cast<double>(length));
    EXPECT_EQ(book.tokens(), static_cast<std::int64_t>(length));
  }
  EXPECT_EQ(Left(), 90);
  book.Pin(Some(0, 40), 100.0, 95.0);  // is kept for longer already
  EXPECT_EQ(book.tokens(), 90);
}

}  // namespace
}  // namespace kvcache::server::pin_book_test
