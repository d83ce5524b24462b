// What followed some keys before: in all prefixes of a salt, also after they were divided, merged and
// shortened.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "kvcache/prefix_cache.h"

namespace kvcache::prefix::continuations_test {
namespace {

using Keys = std::vector<PrefixKey>;

class NoStates final : public PrefixStates {
 public:
  void Drop(PrefixState /*state*/) override {}
  bool Truncate(PrefixState /*state*/, Position /*length*/) override { return true; }
};

class ContinuationsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    prefixes_ = *PrefixCache::Make(states_, {.divisible = GetParam(), .finds_continuations = true});
  }

  void Store(const Keys& keys, std::uint64_t salt = 0) {
    const auto plan = prefixes_->Begin({.keys = keys, .salt = salt}, now_ += 1.0);
    ASSERT_TRUE(plan.ok());
    const auto length = static_cast<Position>(keys.size());
    ASSERT_TRUE(prefixes_->Extend(plan->request, length, PrefixState{++state_}).ok());
    prefixes_->Close(plan->request, now_);
  }
  Keys After(const Keys& text, std::size_t max, std::uint64_t salt = 0, std::size_t min = 6) {
    Keys found;
    EXPECT_TRUE(prefixes_->FollowedBy(text, min, salt, max, found).ok());
    return found;
  }
  static Keys Range(PrefixKey first, PrefixKey end) {
    Keys keys;
    for (; first < end; ++first) keys.push_back(first);
    return keys;
  }

  NoStates states_;
  std::unique_ptr<PrefixCache> prefixes_;
  double now_ = 0.0;
  std::uint64_t state_ = 0;
};

TEST_P(ContinuationsTest, FindsWhatFollowedInAnyPrefixOfTheSalt) {
  Store(Range(100, 200));
  EXPECT_EQ(After(Range(140, 150), 5), Range(150, 155));
  EXPECT_EQ(After(Range(144, 150), 5), Range(150, 155));
  EXPECT_EQ(After(Range(145, 150), 5), Keys{}) << "five keys are too few";
  EXPECT_EQ(After(Range(140, 150), 5, 0, 12), Keys{}) << "ten are fewer than asked for";
  EXPECT_EQ(After(Range(130, 150), 5, 0, 12), Range(150, 155));
  EXPECT_EQ(After(Range(140, 150), 5, 1), Keys{}) << "another salt";
  EXPECT_EQ(After(Range(190, 198), 5), Range(198, 200));
  EXPECT_EQ(After(Range(190, 200), 5), Keys{});
}

TEST_P(ContinuationsTest, TheLongestMatchWins) {
  Keys first = Range(100, 120);
  first.push_back(7);
  Keys second = Range(110, 120);  // 10 of the keys, and newer
  second.push_back(8);
  Store(first);
  Store(second);
  EXPECT_EQ(After(Range(100, 120), 1), Keys{7});
  EXPECT_EQ(After(Range(112, 120), 1), Keys{8});
}

TEST_P(ContinuationsTest, ContinuesAcrossNodes) {
  Keys edited = Range(100, 150);
  edited.push_back(9);
  Store(Range(100, 200));
  Store(edited);  // divides the first
  EXPECT_EQ(After(Range(140, 146), 4), Range(146, 150));
  EXPECT_EQ(After(Range(140, 148), 3), (Keys{148, 149, 9})) << "the newest branch";
  EXPECT_EQ(After(Range(144, 152), 3), Range(152, 155));
}

// Compares with a search of all that is stored. Newer texts may have taken a place in the table, so
// nothing may be found, but never anything that does not follow.
TEST_P(ContinuationsTest, FindsOnlyWhatIsThere) {
  std::mt19937 random(5);
  const auto pick = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  std::vector<Keys> stored[2];
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto salt = static_cast<std::uint64_t>(pick(2));
    auto& texts = stored[salt];
    Keys text;
    if (!texts.empty() && pick(3) > 0) {
      text = texts[static_cast<std::size_t>(pick(static_cast<int>(texts.size())))];
      text.resize(1 + static_cast<std::size_t>(pick(static_cast<int>(text.size()))));
    }
    for (int more = 1 + pick(60); more > 0; --more) text.push_back(static_cast<PrefixKey>(pick(2)));
    texts.push_back(text);
    Store(text, salt);
    if (pick(3) == 0) (void)prefixes_->Evict(pick(300));
    const Keys& other = texts[static_cast<std::size_t>(pick(static_cast<int>(texts.size())))];
    const auto cut = static_cast<std::size_t>(pick(static_cast<int>(other.size())) + 1);
    const Keys query(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(cut));
    const Keys next = After(query, 4, salt);
    if (next.empty()) continue;
    ++found;
    Keys wanted(query.end() - std::min<std::ptrdiff_t>(6, std::ssize(query)), query.end());
    wanted.insert(wanted.end(), next.begin(), next.end());
    const bool there = std::any_of(texts.begin(), texts.end(), [&](const Keys& keys) {
      return std::search(keys.begin(), keys.end(), wanted.begin(), wanted.end()) != keys.end();
    });
    ASSERT_TRUE(there) << "round " << round;
  }
  EXPECT_GT(found, 1000);
  EXPECT_EQ(prefixes_->CheckStructure(), "");
  while (prefixes_->Evict(1 << 20) >= 0) {
  }
  for (const Keys& text : stored[0]) EXPECT_EQ(After(text, 4), Keys{});
}

INSTANTIATE_TEST_SUITE_P(Kinds, ContinuationsTest, ::testing::Bool(), [](const auto& kind) {
  return kind.param ? std::string("Divisible") : std::string("Exact");
});

}  // namespace
}  // namespace kvcache::prefix::continuations_test
