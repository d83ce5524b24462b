// Requests that come once (titles, summaries) between the turns of conversations: the cache learns from
// their answers that they do not come back, although nobody marked them.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kvcache/prefix_cache.h"

namespace kvcache::prefix::one_off_test {
namespace {

using Keys = std::vector<PrefixKey>;

constexpr std::size_t kConversations = 12;
constexpr int kTurns = 1200;
constexpr int kOneOffs = 8;  // between two turns
constexpr std::size_t kQuestion = 100;
constexpr std::size_t kAnswer = 200;
constexpr std::size_t kTitlePrompt = 400;
constexpr std::size_t kTitle = 6;
constexpr std::size_t kLongest = 4000;  // a conversation begins anew then
constexpr std::int64_t kBudget = 40000;

class NoStates : public PrefixStates {
 public:
  void Drop(PrefixState /*state*/) override {}
  bool Truncate(PrefixState /*state*/, Position /*length*/) override { return true; }
};

// Conversations at random, and requests of fresh tokens between their turns.
class Users {
 public:
  Keys Fresh(std::size_t count) {
    Keys keys(count);
    for (PrefixKey& key : keys) key = next_++;
    return keys;
  }
  Keys& NextConversation() {
    Keys& text = conversations_[random_() % kConversations];
    if (text.size() > kLongest) text = {};
    Add(text, kQuestion);
    return text;
  }
  void Add(Keys& text, std::size_t count) {
    const Keys more = Fresh(count);
    text.insert(text.end(), more.begin(), more.end());
  }

 private:
  std::mt19937 random_{5};
  PrefixKey next_ = 0;
  std::vector<Keys> conversations_{kConversations};
};

class Recognition : public ::testing::Test {
 protected:
  // Returns the tokens of the prompt that were known.
  Position Run(const Keys& prompt, const Keys& answer) {
    const PrefixPlan plan = *cache_->Begin({.keys = prompt}, ++now_);
    EXPECT_TRUE(cache_->Append(plan.request, answer).ok());
    const auto length = static_cast<Position>(prompt.size() + answer.size());
    EXPECT_TRUE(cache_->Extend(plan.request, length, PrefixState{++states_}).ok());
    cache_->Close(plan.request, ++now_);
    while (cache_->Stats().tokens > kBudget) {
      if (cache_->Evict(cache_->Stats().tokens - kBudget) < 0) break;
    }
    return plan.resumed;
  }

  NoStates no_states_;
  std::unique_ptr<PrefixCache> cache_ = *PrefixCache::Make(no_states_, {});
  std::uint64_t states_ = 0;
  double now_ = 0.0;
};

// What whole conversations reuse if the least recently used text goes first.
class LeastRecentlyUsed {
 public:
  // `id`: of the text; what it held before `length` is reused.
  std::size_t Use(std::size_t id, std::size_t prompt, std::size_t length) {
    std::size_t reused = 0;
    const auto at = std::find_if(texts_.begin(), texts_.end(),
                                 [&](const auto& text) { return text.first == id; });
    if (at != texts_.end()) {
      reused = std::min(at->second, prompt);
      held_ -= at->second;
      texts_.erase(at);
    }
    texts_.emplace_back(id, length);
    held_ += length;
    while (held_ > kBudget) {
      held_ -= texts_.front().second;
      texts_.pop_front();
    }
    return reused;
  }

 private:
  std::list<std::pair<std::size_t, std::size_t>> texts_;
  std::size_t held_ = 0;
};

TEST_F(Recognition, RequestsThatComeOnceDoNotPushOutConversations) {
  Users users;
  LeastRecentlyUsed recent;
  std::size_t prompts = 0;
  std::size_t reused = 0;
  std::size_t reused_by_recency = 0;
  std::size_t one_off = 1 << 20;
  for (int turn = 0; turn < kTurns; ++turn) {
    Keys& text = users.NextConversation();
    const std::size_t prompt = text.size();
    const Keys answer = users.Fresh(kAnswer);
    const auto known = static_cast<std::size_t>(Run(text, answer));
    text.insert(text.end(), answer.begin(), answer.end());
    const std::size_t known_by_recency = recent.Use(text.front(), prompt, text.size());
    if (turn >= kTurns / 2) {
      prompts += prompt;
      reused += known;
      reused_by_recency += known_by_recency;
    }
    for (int i = 0; i < kOneOffs; ++i) {
      EXPECT_EQ(Run(users.Fresh(kTitlePrompt), users.Fresh(kTitle)), 0);
      recent.Use(++one_off << 40, 0, kTitlePrompt + kTitle);
    }
  }
  // The prompts' new tokens cannot be reused.
  const std::size_t max = prompts - kQuestion * kTurns / 2;
  RecordProperty("percent", static_cast<int>(100 * reused / max));
  RecordProperty("percent_by_recency", static_cast<int>(100 * reused_by_recency / max));
  EXPECT_LT(reused_by_recency, max * 7 / 10) << "there is nothing to recognise";
  EXPECT_GT(reused, max * 95 / 100);
  EXPECT_EQ(cache_->CheckStructure(), "");
}

}  // namespace
}  // namespace kvcache::prefix::one_off_test
