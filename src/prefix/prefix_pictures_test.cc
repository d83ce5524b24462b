// Prompts with pictures: matches and captures end in none.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kvcache/prefix_cache.h"

namespace kvcache::prefix::prefix_pictures_test {
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

// States that can all be cut.
class CountedStates : public PrefixStates {
 public:
  void Drop(PrefixState) override {}
  bool Truncate(PrefixState, Position) override { return true; }
  PrefixState Add() { return PrefixState{++last_}; }

 private:
  std::uint64_t last_ = 0;
};

class PrefixPicturesTest : public ::testing::Test {
 protected:
  static constexpr PrefixKey kPicture = 1 << 20;  // keys of a picture's cells

  void Make(PrefixOptions options) { cache_ = *PrefixCache::Make(states_, options); }
  PrefixPlan Run(const Keys& prompt, const std::vector<PrefixRange>& pictures) {
    PrefixPlan plan = *cache_->Begin({.keys = prompt, .pictures = pictures}, ++now_);
    for (const Position at : plan.captures) {
      EXPECT_TRUE(cache_->Extend(plan.request, at, states_.Add()).ok());
    }
    const auto length = static_cast<Position>(prompt.size());
    EXPECT_TRUE(cache_->Extend(plan.request, length, states_.Add()).ok());
    cache_->Close(plan.request, ++now_);
    EXPECT_EQ(cache_->CheckStructure(), "");
    return plan;
  }
  // Returns what a prompt reuses and misses: "30+10 other picture".
  std::string Reuse(const Keys& prompt, const std::vector<PrefixRange>& pictures) {
    const PrefixMatch match = *cache_->Probe({.keys = prompt, .pictures = pictures});
    std::string text = std::to_string(match.resumed);
    Position sum = match.resumed;
    for (const PrefixMiss& miss : match.missed) {
      text += "+" + std::to_string(miss.tokens) + " " + std::string(MissReasonName(miss.reason));
      sum += miss.tokens;
    }
    EXPECT_EQ(sum, static_cast<Position>(prompt.size()));
    return text;
  }

  CountedStates states_;
  std::unique_ptr<PrefixCache> cache_;
  double now_ = 0.0;
};

TEST_F(PrefixPicturesTest, AMatchIsAllOfAPictureOrNothing) {
  Make({});
  const Keys text = Range(0, 30);
  const Keys picture = Range(kPicture, 20);
  Run(text + picture + Range(100, 10), {{30, 50}});
  EXPECT_EQ(Reuse(text + picture + Range(100, 10), {{30, 50}}), "59+1 last token");
  EXPECT_EQ(Reuse(text + picture + Range(200, 5), {{30, 50}}), "50+5 differs");
  EXPECT_EQ(Reuse(text + picture, {{30, 50}}), "30+19 part of a picture+1 last token");
  // Another picture that begins with the same cells.
  const Keys other = Range(kPicture, 7) + Range(2 * kPicture, 13);
  EXPECT_EQ(Reuse(text + other, {{30, 50}}), "30+7 part of a picture+13 other picture");
  EXPECT_EQ(Reuse(text + Range(3 * kPicture, 20) + Range(100, 10), {{30, 50}}),
            "30+30 other picture");
  // The same keys in a prompt that has no pictures.
  EXPECT_EQ(Reuse(text + other, {}), "37+13 differs");
}

TEST_F(PrefixPicturesTest, APictureAtTheBeginningOfAPrompt) {
  Make({});
  Run(Range(kPicture, 20) + Range(0, 5), {{0, 20}});
  EXPECT_EQ(Reuse(Range(2 * kPicture, 20) + Range(0, 5), {{0, 20}}), "0+25 other picture");
  EXPECT_EQ(Reuse(Range(kPicture, 20) + Range(0, 5), {{0, 20}}), "24+1 last token");
}

TEST_F(PrefixPicturesTest, WhatIsLeftOfAPictureIsOfNoUse) {
  Make({});
  const Keys prompt = Range(0, 30) + Range(kPicture, 100) + Range(100, 40);
  Run(prompt, {{30, 130}});
  EXPECT_EQ(cache_->Evict(80), 80);  // 90 keys are left
  EXPECT_TRUE(Reuse(prompt, {{30, 130}}).starts_with("30+60 part of a picture"));
}

TEST_F(PrefixPicturesTest, CapturesAreBeforeAndBehindPictures) {
  Make({.divisible = false, .recompute_bound = 32});
  const Keys prompt = Range(0, 60) + Range(kPicture, 50) + Range(100, 40);
  const PrefixPlan plan = Run(prompt, {{60, 110}});
  EXPECT_EQ(plan.captures, (std::vector<Position>{32, 60, 128, 149}));
  EXPECT_EQ(Reuse(prompt, {{60, 110}}), "149+1 last token");
  EXPECT_EQ(Reuse(Range(0, 60) + Range(kPicture, 50) + Range(300, 4), {{60, 110}}),
            "60+50 no restore point+4 differs");
  EXPECT_EQ(Reuse(Range(0, 60) + Range(2 * kPicture, 50), {{60, 110}}), "60+50 other picture");
}

TEST_F(PrefixPicturesTest, RefusesPicturesThatDoNotAscendWithinThePrompt) {
  Make({});
  const Keys prompt = Range(0, 30);
  const std::vector<std::vector<PrefixRange>> all_wrong = {
      {{-1, 3}}, {{3, 3}}, {{4, 3}}, {{20, 31}}, {{5, 10}, {9, 12}}, {{5, 10}, {1, 3}}};
  for (const std::vector<PrefixRange>& wrong : all_wrong) {
    EXPECT_EQ(cache_->Probe({.keys = prompt, .pictures = wrong}).status().code(),
              StatusCode::kInvalidArgument);
  }
  const std::vector<PrefixRange> right = {{0, 10}, {10, 30}};
  EXPECT_TRUE(cache_->Probe({.keys = prompt, .pictures = right}).ok());
}

}  // namespace
}  // namespace kvcache::prefix::prefix_pictures_test
