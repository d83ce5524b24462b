// Random requests against a naive model: the list of all states that the caller still has.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/prefix_cache.h"

namespace kvcache::prefix::prefix_random_test {
namespace {

using Keys = std::vector<PrefixKey>;

struct Held {
  std::uint64_t salt = 0;
  Keys keys;
};

// The states that exist, with the keys that they cover.
class Table : public PrefixStates {
 public:
  void Drop(PrefixState state) override {
    EXPECT_EQ(held.erase(static_cast<std::uint64_t>(state)), 1U);
  }
  bool Truncate(PrefixState state, Position length) override {
    const auto found = held.find(static_cast<std::uint64_t>(state));
    EXPECT_NE(found, held.end());
    EXPECT_LE(static_cast<std::size_t>(length), found->second.keys.size());
    if (fails_to_truncate) return false;
    found->second.keys.resize(static_cast<std::size_t>(length));
    return true;
  }
  PrefixState Add(std::uint64_t salt, Keys keys) {
    held[++last] = {salt, std::move(keys)};
    return PrefixState{last};
  }

  std::map<std::uint64_t, Held> held;
  std::uint64_t last = 0;
  bool fails_to_truncate = false;
};

Position SharedLength(const Keys& a, const Keys& b) {
  const std::size_t max = std::min(a.size(), b.size());
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(max);
  return static_cast<Position>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

// Returns the length that a prompt can resume from these states.
Position LongestResumable(const Table& table, std::uint64_t salt, const Keys& prompt,
                          bool divisible) {
  Position longest = 0;
  for (const auto& [id, held] : table.held) {
    if (held.salt != salt) continue;
    const Position shared =
        std::min(SharedLength(held.keys, prompt), static_cast<Position>(prompt.size()) - 1);
    const bool whole = static_cast<std::size_t>(shared) == held.keys.size();
    if (divisible || whole) longest = std::max(longest, shared);
  }
  return longest;
}

std::int64_t CountTokens(const Table& table) {
  std::set<std::pair<std::uint64_t, Keys>> prefixes;
  for (const auto& [id, held] : table.held) {
    Keys keys;
    for (const PrefixKey key : held.keys) {
      keys.push_back(key);
      prefixes.emplace(held.salt, keys);
    }
  }
  return static_cast<std::int64_t>(prefixes.size());
}

struct Live {
  PrefixRequest request{};
  std::uint64_t salt = 0;
  Keys keys;
  Position resumed = 0;
  std::vector<Position> captures{};
};

class PrefixRandomTest : public ::testing::TestWithParam<bool> {
 protected:
  // A prompt that often continues or repeats what was there before.
  Keys MakePrompt() {
    Keys keys;
    if (!texts_.empty() && Pick(4) > 0) {
      keys = texts_[Pick(texts_.size())];
      keys.resize(Pick(keys.size() + 1));
    }
    const std::size_t more = 1 + Pick(40);
    for (std::size_t i = 0; i < more; ++i) keys.push_back(Pick(3));
    return keys;
  }
  std::size_t Pick(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void Begin() {
    Live live;
    live.salt = Pick(2);
    live.keys = MakePrompt();
    std::vector<Position> points;
    if (Pick(2) == 0) points.push_back(static_cast<Position>(1 + Pick(live.keys.size())));
    const PrefixPrompt prompt{.keys = live.keys, .salt = live.salt, .restore_points = points};
    const PrefixMatch probe = *cache_->Probe(prompt);
    const PrefixPlan plan = *cache_->Begin(prompt, now_);
    ASSERT_EQ(plan.resumed, LongestResumable(table_, live.salt, live.keys, divisible_));
    ASSERT_EQ(plan.resumed, probe.resumed);
    ASSERT_EQ(plan.state, probe.state);
    ASSERT_LE(plan.resumed, plan.matched);
    ASSERT_EQ(plan.state == PrefixState::kNone, plan.resumed == 0);
    Position missed = 0;
    for (const PrefixMiss& miss : plan.missed) missed += miss.tokens;
    ASSERT_EQ(missed, static_cast<Position>(live.keys.size()) - plan.resumed);
    if (plan.resumed > 0) {
      const Held& held = table_.held.at(static_cast<std::uint64_t>(plan.state));
      ASSERT_GE(SharedLength(held.keys, live.keys), plan.resumed);
      if (!divisible_) {
        ASSERT_EQ(held.keys.size(), static_cast<std::size_t>(plan.resumed));
      }
    }
    live.request = plan.request;
    live.resumed = plan.resumed;
    live.captures = plan.captures;
    if (plan.resumed > 0 && Pick(20) == 0) {
      live.captures = cache_->NotRestored(plan.request);
      live.resumed = 0;
    }
    Position before = live.resumed;
    for (const Position at : live.captures) {
      ASSERT_GT(at, before);
      ASSERT_LE(at - before, kBound);
      before = at;
    }
    live_.push_back(std::move(live));
  }

  // A request evaluates some of its prompt, perhaps all and an answer, and ends.
  void Finish() {
    const std::size_t i = Pick(live_.size());
    Live live = std::move(live_[i]);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
    const bool cancelled = Pick(4) == 0;
    auto length = static_cast<Position>(live.keys.size());
    if (cancelled) length = live.resumed + static_cast<Position>(Pick(length - live.resumed));
    for (const Position at : live.captures) {
      if (at > length || Pick(30) == 0) continue;
      Extend(live, at);
    }
    if (!cancelled) {
      Keys answer;
      for (std::size_t k = Pick(20); k > 0; --k) answer.push_back(Pick(3));
      ASSERT_TRUE(cache_->Append(live.request, answer).ok());
      live.keys.insert(live.keys.end(), answer.begin(), answer.end());
      length = static_cast<Position>(live.keys.size());
    }
    if (length > live.resumed) Extend(live, length);
    cache_->Close(live.request, now_);
    texts_.push_back(live.keys);
    if (texts_.size() > 30) texts_.erase(texts_.begin());
  }

  void Extend(const Live& live, Position length) {
    Keys keys(live.keys.begin(), live.keys.begin() + length);
    const PrefixState state = table_.Add(live.salt, std::move(keys));
    ASSERT_TRUE(cache_->Extend(live.request, length, state).ok());
  }

  // Returns false if nothing may go.
  bool Evict() {
    const std::int64_t before = cache_->Stats().tokens;
    table_.fails_to_truncate = Pick(10) == 0;
    const std::int64_t removed = cache_->Evict(static_cast<std::int64_t>(Pick(60)));
    table_.fails_to_truncate = false;
    if (removed < 0) {
      EXPECT_EQ(before, cache_->Stats().tokens);
      return false;
    }
    EXPECT_EQ(before - removed, cache_->Stats().tokens);
    return true;
  }

  static constexpr Position kBound = 16;
  const bool divisible_ = GetParam();
  Table table_;
  std::mt19937_64 random_{divisible_ ? 1U : 2U};
  double now_ = 0.0;
  std::vector<Keys> texts_;
  std::vector<Live> live_;
  std::unique_ptr<PrefixCache> cache_ = *PrefixCache::Make(
      table_, {.divisible = divisible_, .recompute_bound = kBound, .state_tokens = 4});
};

TEST_P(PrefixRandomTest, ReusesWhatTheStatesAllow) {
  for (int step = 0; step < 6000; ++step) {
    now_ += 1.0;
    const std::size_t action = Pick(10);
    if (action < 4 && live_.size() < 6) {
      Begin();
    } else if (action < 7 && !live_.empty()) {
      Finish();
    } else if (action == 7) {
      const Keys keys = MakePrompt();
      (void)cache_->Pin({.keys = keys, .salt = Pick(2)}, now_ + static_cast<double>(Pick(50)));
    }
    while (cache_->Stats().tokens > 400 && !HasFatalFailure()) {
      if (!Evict()) break;
    }
    if (HasFatalFailure()) FAIL() << "step " << step;
    if (step % 20 == 0) {
      ASSERT_EQ(cache_->CheckStructure(), "") << "step " << step;
      ASSERT_EQ(cache_->Stats().states, static_cast<std::int64_t>(table_.held.size()));
      // A live request may still protect tokens whose state could not be cut.
      const std::int64_t tokens = cache_->Stats().tokens;
      ASSERT_GE(tokens, CountTokens(table_)) << "step " << step;
      if (live_.empty()) {
        ASSERT_EQ(tokens, CountTokens(table_)) << "step " << step;
      }
    }
  }
  while (!live_.empty()) Finish();
  now_ += 100.0;
  cache_->Close(PrefixRequest{1}, now_);
  while (cache_->Evict(1000) >= 0) {
  }
  EXPECT_EQ(cache_->Stats().tokens, 0);
  EXPECT_TRUE(table_.held.empty());
}

INSTANTIATE_TEST_SUITE_P(Kinds, PrefixRandomTest, ::testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Divisible" : "Exact"; });

}  // namespace
}  // namespace kvcache::prefix::prefix_random_test
