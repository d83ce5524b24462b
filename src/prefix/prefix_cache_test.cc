// The prefix cache's decisions, one at a time: what is missed and why, what is kept, what goes first.
#include "kvcache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::prefix::prefix_cache_test {
namespace {

using Keys = std::vector<PrefixKey>;

Keys Range(PrefixKey first, std::size_t count) {
  Keys keys(count);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

Keys operator+(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

// Lengths of the states that exist.
class Lengths : public PrefixStates {
 public:
  void Drop(PrefixState state) override { held.erase(state); }
  bool Truncate(PrefixState state, Position length) override {
    held.at(state) = length;
    return true;
  }
  PrefixState Add(Position length) {
    held[PrefixState{++last}] = length;
    return PrefixState{last};
  }

  std::map<PrefixState, Position> held;
  std::uint64_t last = 0;
};

class PrefixCacheTest : public ::testing::Test {
 protected:
  void Make(PrefixOptions options) { cache_ = *PrefixCache::Make(states_, options); }
  // Runs a request to its end, with states where it should have some.
  PrefixPlan Run(const Keys& prompt, const Keys& answer = {}) {
    PrefixPlan plan = *cache_->Begin({.keys = prompt}, ++now_);
    for (const Position at : plan.captures) {
      EXPECT_TRUE(cache_->Extend(plan.request, at, states_.Add(at)).ok());
    }
    EXPECT_TRUE(cache_->Append(plan.request, answer).ok());
    const auto length = static_cast<Position>(prompt.size() + answer.size());
    EXPECT_TRUE(cache_->Extend(plan.request, length, states_.Add(length)).ok());
    cache_->Close(plan.request, ++now_);
    return plan;
  }
  std::string MissedBy(const Keys& prompt, std::uint64_t salt = 0) {
    std::string text;
    const PrefixMatch match = *cache_->Probe({.keys = prompt, .salt = salt});
    for (const PrefixMiss& miss : match.missed) {
      text += (text.empty() ? "" : ", ") + std::to_string(miss.tokens) + " " +
              std::string(MissReasonName(miss.reason));
    }
    return text;
  }
  Position Known(const Keys& prompt) { return (*cache_->Probe({.keys = prompt})).matched; }

  Lengths states_;
  std::unique_ptr<PrefixCache> cache_;
  double now_ = 0.0;
};

TEST_F(PrefixCacheTest, SaysWhyTokensAreMissed) {
  Make({});
  EXPECT_EQ(MissedBy(Range(0, 100)), "100 new");
  Run(Range(0, 100), Range(500, 28));
  EXPECT_EQ(MissedBy(Range(0, 100)), "1 last token");
  EXPECT_EQ(MissedBy(Range(0, 50) + Range(900, 10)), "10 differs");
  EXPECT_EQ(MissedBy(Range(0, 100) + Range(500, 28) + Range(900, 10)), "10 new");
  EXPECT_EQ(MissedBy(Range(0, 100), 1), "100 new") << "another tenant";
  EXPECT_EQ(cache_->Evict(1000), 128);
  // What was known is remembered in whole chunks of 64.
  EXPECT_EQ(MissedBy(Range(0, 100)), "64 evicted, 36 new");
  EXPECT_EQ(MissedBy(Range(0, 30)), "30 new");
}

TEST_F(PrefixCacheTest, DifferenceIsTheFirstOtherToken) {
  Make({});
  Run(Range(0, 100));
  const PrefixMatch inside = *cache_->Probe({.keys = Range(0, 40) + Range(900, 10)});
  EXPECT_EQ(inside.matched, 40);
  EXPECT_EQ(inside.difference.position, 40);
  EXPECT_EQ(inside.difference.cached, 40U);
  EXPECT_EQ(inside.difference.prompt, 900U);
  // Beyond the end of all that is known, nothing differs.
  const PrefixMatch beyond = *cache_->Probe({.keys = Range(0, 120)});
  EXPECT_EQ(beyond.matched, 100);
  EXPECT_EQ(beyond.difference.position, -1);
  // Another tenant's prompt is not a difference.
  EXPECT_EQ((*cache_->Probe({.keys = Range(0, 40), .salt = 1})).difference.position, -1);
}

// The first token of all prompts of a model says nothing of the text.
TEST_F(PrefixCacheTest, PromptThatSharesOnlyItsFirstTokenIsNew) {
  Make({});
  Run(Range(0, 100));
  EXPECT_EQ(MissedBy(Range(0, 1) + Range(900, 10)), "10 new");
  EXPECT_EQ(MissedBy(Range(900, 10)), "10 new");
  EXPECT_EQ(MissedBy(Range(0, 2) + Range(900, 10)), "10 differs");
  EXPECT_EQ(MissedBy(Range(0, 1)), "1 last token");
}

TEST_F(PrefixCacheTest, NodesAreVisitedFromTheRootDownWithTheirChildren) {
  Make({});
  Run(Range(0, 10) + Range(100, 10));
  Run(Range(0, 10) + Range(200, 10));
  Run(Range(0, 10) + Range(200, 5) + Range(300, 5));
  std::string seen;
  cache_->Visit(0, [&](const PrefixNodeView& node) {
    seen += std::to_string(node.begin) + "-" + std::to_string(node.end) + ":" +
            std::to_string(node.children) + " ";
    return true;
  });
  EXPECT_EQ(seen, "0-10:2 10-15:2 15-20:0 15-20:0 10-20:0 ");
}

TEST_F(PrefixCacheTest, ProbeChangesNothing) {
  Make({});
  Run(Range(0, 200));
  Run(Range(0, 100) + Range(900, 100));
  const PrefixStats before = cache_->Stats();
  for (PrefixKey i = 0; i < 200; ++i) {
    EXPECT_TRUE(cache_->Probe({.keys = Range(0, i + 1) + Range(5000 + i, 3)}).ok());
    EXPECT_TRUE(cache_->Probe({.keys = Range(0, 10), .salt = i + 1}).ok());
  }
  const PrefixStats after = cache_->Stats();
  EXPECT_EQ(after.nodes, before.nodes);
  EXPECT_EQ(after.tokens, before.tokens);
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(cache_->CheckStructure(), "");
}

TEST_F(PrefixCacheTest, VisitShowsTheNodesOfASalt) {
  Make({});
  const Keys shared = Range(0, 10);
  Run(shared + Range(100, 5));
  Run(shared + Range(200, 7));
  struct Seen {
    std::uint64_t number, parent;
    Keys keys;
    Position begin, end;
  };
  std::vector<Seen> seen;
  const auto look = [&](std::uint64_t salt, std::size_t max) {
    seen.clear();
    cache_->Visit(salt, [&](const PrefixNodeView& node) {
      seen.push_back({node.number, node.parent, Keys(node.keys.begin(), node.keys.end()),
                      node.begin, node.end});
      return seen.size() < max;
    });
  };
  look(0, 100);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].parent, 0u);
  EXPECT_EQ(seen[0].keys, shared);
  EXPECT_EQ(seen[0].begin, 0);
  EXPECT_EQ(seen[1].keys, Range(200, 7)) << "the one that was used last comes first";
  EXPECT_EQ(seen[1].parent, seen[0].number);
  EXPECT_EQ(seen[2].keys, Range(100, 5));
  EXPECT_EQ(seen[2].parent, seen[0].number);
  EXPECT_EQ(seen[2].begin, 10);
  EXPECT_EQ(seen[2].end, 15);
  look(0, 2);
  EXPECT_EQ(seen.size(), 2u);
  look(1, 100);
  EXPECT_TRUE(seen.empty()) << "another salt";
}

TEST_F(PrefixCacheTest, PinnedPrefixesStayUntilTheirTime) {
  Make({});
  Run(Range(0, 100));
  Run(Range(1000, 100));
  EXPECT_EQ(cache_->Pin({.keys = Range(0, 60)}, now_ + 50), 60);
  EXPECT_EQ(cache_->Pin({.keys = Range(7000, 60)}, now_ + 50), 0) << "nothing is known";
  while (cache_->Evict(1000) >= 0) {
  }
  EXPECT_EQ(Known(Range(0, 100)), 60);
  EXPECT_EQ(Known(Range(1000, 100)), 0);
  now_ += 60;
  cache_->Close(PrefixRequest{999}, now_);  // the clock continues
  EXPECT_EQ(cache_->Evict(1000), 60);
  EXPECT_TRUE(states_.held.empty());
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoesFirstBeforeAnythingIsLearned) {
  Make({});
  for (PrefixKey i = 0; i < 5; ++i) Run(Range(i * 1000, 100));
  Run(Range(0, 100));
  for (const PrefixKey expected : {1, 2, 3, 4, 0}) {
    EXPECT_EQ(cache_->Evict(100), 100);
    EXPECT_EQ(Known(Range(expected * 1000, 100)), 0) << expected;
  }
}

// Requests that live together end in an order of their own, while no prompt begins.
TEST_F(PrefixCacheTest, TheRequestThatEndedFirstGoesFirst) {
  const PrefixKey ended[] = {3, 1, 4, 0, 2};
  Make({});
  std::map<PrefixKey, PrefixRequest> requests;
  for (PrefixKey i = 0; i < 5; ++i) {
    requests[i] = cache_->Begin({.keys = Range(i * 1000, 100)}, ++now_)->request;
    EXPECT_TRUE(cache_->Extend(requests[i], 100, states_.Add(100)).ok());
  }
  for (const PrefixKey i : ended) cache_->Close(requests[i], ++now_);
  for (const PrefixKey i : ended) {
    EXPECT_EQ(cache_->Evict(100), 100);
    EXPECT_EQ(Known(Range(i * 1000, 100)), 0) << i;
  }
}

// The same for requests with a common beginning, with answers of different lengths, and for states that cannot be cut.
TEST_F(PrefixCacheTest, TheRequestThatEndedFirstGoesFirstWhateverItIs) {
  for (const bool divisible : {true, false}) {
    const PrefixKey ended[] = {2, 0, 3, 1};
    Make({.divisible = divisible});
    Run(Range(0, 200));
    std::map<PrefixKey, PrefixRequest> requests;
    for (const PrefixKey i : {3, 2, 1, 0}) {
      const Keys prompt = Range(0, 200) + Range(1000 * (i + 1), 100);
      requests[i] = cache_->Begin({.keys = prompt}, ++now_)->request;
      EXPECT_TRUE(cache_->Extend(requests[i], 300, states_.Add(300)).ok());
      const std::size_t answer = 10 + 40 * i;
      EXPECT_TRUE(cache_->Append(requests[i], Range(1000 * (i + 1) + 500, answer)).ok());
      const auto length = static_cast<Position>(300 + answer);
      EXPECT_TRUE(cache_->Extend(requests[i], length, states_.Add(length)).ok());
    }
    for (const PrefixKey i : ended) cache_->Close(requests[i], ++now_);
    for (const PrefixKey i : ended) {
      while (Known(Range(0, 200) + Range(1000 * (i + 1), 100)) > 200) {
        for (const PrefixKey other : ended) {
          EXPECT_GE(Known(Range(0, 200) + Range(1000 * (other + 1), 100)), other == i ? 201 : 0);
        }
        ASSERT_GE(cache_->Evict(1), 0);
        for (const PrefixKey* later = std::find(ended, std::end(ended), i) + 1;
             later != std::end(ended); ++later) {
          EXPECT_EQ(Known(Range(0, 200) + Range(1000 * (*later + 1), 100)), 299) << *later;
        }
      }
    }
  }
}

// Each turn repeats all of the chat, and adds a question and an answer.
TEST_F(PrefixCacheTest, AChatIsOneNode) {
  Make({.finds_continuations = true});
  Keys text = Range(0, 50);
  for (PrefixKey turn = 1; turn <= 30; ++turn) {
    const Keys answer = Range(turn * 1000 + 500, 7);
    Run(text, answer);
    text = text + answer + Range(turn * 1000, 20);
    EXPECT_EQ(cache_->Stats().nodes, 1) << "turn " << turn;
    EXPECT_EQ(cache_->Stats().states, 1);
  }
  EXPECT_EQ(Known(text), static_cast<Position>(text.size()) - 20);
  EXPECT_EQ(cache_->CheckStructure(), "");
  std::vector<PrefixKey> found;
  ASSERT_TRUE(cache_->FollowedBy(Range(1000, 20), 6, 0, 3, found).ok());
  EXPECT_EQ(found, Range(2500, 3));
}

// Chats with a common beginning have one node each, and one for the beginning.
TEST_F(PrefixCacheTest, ChatsWithACommonBeginningAreANodeEach) {
  Make({});
  std::vector<Keys> texts;
  for (PrefixKey chat = 0; chat < 5; ++chat) texts.push_back(Range(0, 50) + Range(chat << 20, 9));
  for (PrefixKey turn = 1; turn <= 12; ++turn) {
    for (Keys& text : texts) {
      const PrefixKey first = text.back() + 1000;
      Run(text, Range(first, 7));
      text = text + Range(first, 7) + Range(first + 500, 20);
    }
  }
  EXPECT_EQ(cache_->Stats().nodes, 6);
  // An answer that was asked for again divides a chat; when it goes, the chat is one node again.
  Run(Keys(texts[0].begin(), texts[0].begin() + 200) + Range(77, 9));
  EXPECT_EQ(cache_->Stats().nodes, 8);
  EXPECT_EQ(cache_->CheckStructure(), "");
}

// The end of a text that nobody used lately goes before its beginning, so they stay apart.
TEST_F(PrefixCacheTest, ABeginningThatWasUsedAloneStaysANode) {
  Make({});
  Run(Range(0, 100) + Range(1000, 100));
  const PrefixPlan plan = *cache_->Begin({.keys = Range(0, 100) + Range(3000, 50)}, ++now_);
  cache_->Close(plan.request, ++now_);
  Run(Range(5000, 100));
  EXPECT_EQ(cache_->Stats().nodes, 3);
  EXPECT_EQ(cache_->Evict(100), 100);
  EXPECT_EQ(Known(Range(0, 100) + Range(1000, 100)), 100);
  EXPECT_EQ(Known(Range(5000, 100)), 99);
}

TEST_F(PrefixCacheTest, LongEndsGoInParts) {
  Make({});
  Run(Range(0, 1000));
  EXPECT_EQ(cache_->Evict(100), 100);
  EXPECT_EQ(Known(Range(0, 1000)), 900);
  EXPECT_EQ(states_.held.begin()->second, 900);
  // A rest of a few tokens is not worth a node.
  EXPECT_EQ(cache_->Evict(880), 900);
  EXPECT_TRUE(states_.held.empty());
}

TEST_F(PrefixCacheTest, WhatALiveRequestUsesStays) {
  Make({});
  Run(Range(0, 100));
  const PrefixPlan plan = *cache_->Begin({.keys = Range(0, 80)}, ++now_);
  EXPECT_EQ(plan.resumed, 79);
  EXPECT_EQ(cache_->Evict(1000), 21);
  EXPECT_EQ(cache_->Evict(1000), -1);
  EXPECT_EQ(Known(Range(0, 100)), 79);
  cache_->Close(plan.request, ++now_);
  EXPECT_EQ(cache_->Evict(1000), 79);
}

TEST_F(PrefixCacheTest, CapturesBoundWhatIsComputedAgain) {
  Make({.divisible = false, .recompute_bound = 64});
  const PrefixPlan plan = Run(Range(0, 300));
  EXPECT_EQ(plan.captures, (std::vector<Position>{64, 128, 192, 256, 299}));
  EXPECT_EQ(MissedBy(Range(0, 200) + Range(900, 10)), "8 no restore point, 10 differs");
  EXPECT_EQ((*cache_->Probe({.keys = Range(0, 200) + Range(900, 10)})).resumed, 192);
}

}  // namespace
}  // namespace kvcache::prefix::prefix_cache_test
