#include "server/api/page/prefix_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace kvcache::server::page::prefix_rows_test {
namespace {

using Keys = std::vector<PrefixKey>;

// States of which nobody asks anything.
class NoStates : public PrefixStates {
 public:
  void Drop(PrefixState /*state*/) override {}
  bool Truncate(PrefixState /*state*/, Position /*length*/) override { return true; }
};

// A trie of prompts, each letter of which is a key.
class PrefixRowsTest : public ::testing::Test {
 protected:
  void Add(const std::string& prompt) { Add(Keys(prompt.begin(), prompt.end())); }
  void Add(const Keys& prompt) {
    const PrefixPlan plan = *cache_->Begin({.keys = prompt}, ++now_);
    const auto length = static_cast<Position>(prompt.size());
    EXPECT_TRUE(cache_->Extend(plan.request, length, PrefixState{++states_}).ok());
    cache_->Close(plan.request, ++now_);
  }
  std::vector<PrefixRow> Rows() const { return RowsIn({}).rows(); }
  PrefixRows RowsIn(PrefixRows::Limits limits) const {
    PrefixRows rows(limits);
    cache_->Visit(0, [&](const PrefixNodeView& node) { return rows.Add(node); });
    return rows;
  }
  // A line for each row: its text with a bar after each part, below its parent.
  std::string Drawn() const {
    std::string text;
    std::map<std::uint64_t, int> depths;
    for (const PrefixRow& row : Rows()) {
      depths[row.number] = row.parent == 0 ? 0 : depths.at(row.parent) + 1;
      text += std::string(static_cast<std::size_t>(depths[row.number]), ' ');
      Position at = row.begin;
      for (const PrefixRow::Part& part : row.parts) {
        for (; at < part.end; ++at) {
          text += static_cast<char>(row.first.at(static_cast<std::size_t>(at - row.begin)));
        }
        text += '|';
      }
      text += '\n';
    }
    return text;
  }

  // Begins again with states that cannot be cut: each keeps a node of its own.
  void UseWholeStates() { cache_ = *PrefixCache::Make(no_states_, {.divisible = false}); }

  NoStates no_states_;
  std::unique_ptr<PrefixCache> cache_ = *PrefixCache::Make(no_states_, {});
  std::uint64_t states_ = 0;
  double now_ = 0.0;
};

TEST_F(PrefixRowsTest, GrowthIsOnePart) {
  Add("the cat");
  Add("the cat sat");
  EXPECT_EQ(Drawn(), "the cat sat|\n");
  Add("the dog");
  EXPECT_EQ(Drawn(), "the |\n dog|\n cat sat|\n");
}

TEST_F(PrefixRowsTest, NodesWithoutForksAreOneRow) {
  UseWholeStates();
  Add("the cat");
  Add("the cat sat");
  Add("the cat sat down");
  EXPECT_EQ(Drawn(), "the cat| sat| down|\n");
  Add("the dog");
  EXPECT_EQ(Drawn(), "the |\n dog|\n cat| sat| down|\n");
}

TEST_F(PrefixRowsTest, ChainsOfSingleTokensAreFolded) {
  UseWholeStates();
  // A prompt that grows by a token at a time is one row.
  for (int size = 1; size <= 20; ++size)
    Add(std::string("abcdefghijklmnopqrst").substr(0, static_cast<std::size_t>(size)));
  ASSERT_EQ(Rows().size(), 1U);
  EXPECT_EQ(Rows().front().parts.size(), 20U);
}

TEST_F(PrefixRowsTest, SingleTokensThatForkAreFoldedIntoWhatFollows) {
  Add("<once");
  Add("<tell me");
  EXPECT_EQ(Drawn(), "<tell me|\n<once|\n");
  Add("<then");
  Add("<this");
  EXPECT_EQ(Drawn(), "<this|\n<then|\n<tell me|\n<once|\n") << "t and h are single tokens";
  for (const PrefixRow& row : Rows()) EXPECT_EQ(row.begin == 0, row.parent == 0);
}

// Rows hold what the trie has: each prompt is the path to a row, whose texts follow each other.
TEST_F(PrefixRowsTest, PathsAreThePrompts) {
  std::mt19937 random(7);
  std::vector<std::string> prompts;
  for (int i = 0; i < 300; ++i) {
    std::string prompt;
    if (!prompts.empty() && random() % 4 != 0) {
      const std::string& other = prompts[random() % prompts.size()];
      prompt = other.substr(0, random() % (other.size() + 1));
    }
    for (std::size_t more = 1 + random() % 12; more > 0; --more) {
      prompt += static_cast<char>('a' + random() % 3);
    }
    Add(prompt);
    prompts.push_back(prompt);
  }
  std::map<std::uint64_t, std::string> texts;  // of whole paths
  std::vector<std::string> ends;
  for (const PrefixRow& row : Rows()) {
    const std::string above = row.parent == 0 ? "" : texts.at(row.parent);
    ASSERT_EQ(above.size(), static_cast<std::size_t>(row.begin));
    ASSERT_EQ(row.parts.back().end, row.end);
    const RowKeys keys = KeysOfRow(*cache_, 0, row.number, 0, 1000);
    ASSERT_EQ(keys.length, row.end - row.begin);
    ASSERT_EQ(std::ssize(keys.keys), keys.length);
    texts[row.number] = above + std::string(keys.keys.begin(), keys.keys.end());
    for (const PrefixRow::Part& part : row.parts) {
      ends.push_back(texts[row.number].substr(0, static_cast<std::size_t>(part.end)));
    }
  }
  for (const std::string& prompt : prompts) {
    const bool folded = std::none_of(ends.begin(), ends.end(),
                                     [&](const std::string& end) { return end == prompt; });
    if (!folded) continue;
    // The end of a folded node is inside of the rows below it.
    EXPECT_TRUE(std::any_of(ends.begin(), ends.end(), [&](const std::string& end) {
      return end.starts_with(prompt);
    })) << prompt;
  }
}

TEST_F(PrefixRowsTest, LongRowsShowBothEndsAndAreReadInParts) {
  for (const std::size_t size : {79U, 80U, 81U, 121U, 5000U}) {
    cache_ = *PrefixCache::Make(no_states_, {});
    Keys prompt(size);
    for (std::size_t i = 0; i < size; ++i) prompt[i] = i;
    Add(Keys(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(size / 3)));
    Add(prompt);
    const PrefixRow row = Rows().at(0);
    Keys shown = row.first;
    shown.insert(shown.end(), row.last.begin(), row.last.end());
    Keys expected = prompt;
    if (size > 80) expected.erase(expected.begin() + 40, expected.end() - 40);
    EXPECT_EQ(shown, expected) << size;
    Keys read;
    while (read.size() < size) {
      const RowKeys part =
          KeysOfRow(*cache_, 0, row.number, static_cast<Position>(read.size()), 33);
      ASSERT_EQ(part.length, static_cast<Position>(size));
      ASSERT_FALSE(part.keys.empty());
      read.insert(read.end(), part.keys.begin(), part.keys.end());
    }
    EXPECT_EQ(read, prompt);
    EXPECT_TRUE(KeysOfRow(*cache_, 0, row.number, INT32_MAX, 33).keys.empty());
    EXPECT_EQ(KeysOfRow(*cache_, 1, row.number, 0, 33).length, 0) << "another user's";
    EXPECT_EQ(KeysOfRow(*cache_, 0, 999999, 0, 33).length, 0);
  }
}

TEST_F(PrefixRowsTest, TenThousandPrefixesAreBounded) {
  for (PrefixKey i = 0; i < 10000; ++i) Add(Keys{1, 100 + i, 7, 8, 9});
  const PrefixRows rows = RowsIn({.rows = 256, .nodes = 16384});
  EXPECT_EQ(rows.rows().size(), 256U);
  EXPECT_FALSE(rows.all());
  EXPECT_EQ(rows.rows().front().first, (Keys{1, 10099, 7, 8, 9})) << "the last one used";
  EXPECT_TRUE(RowsIn({}).all());
  // A prompt that grew by a token 10,000 times.
  UseWholeStates();
  Keys prompt;
  for (PrefixKey i = 0; i < 10000; ++i) {
    prompt.push_back(i);
    if (i % 100 == 99) Add(prompt);
  }
  const PrefixRow row = Rows().at(0);
  EXPECT_EQ(row.end, 10000);
  EXPECT_EQ(row.parts.size(), PrefixRows::kMaxParts);
  EXPECT_EQ(row.parts.back().end, 10000);
}

}  // namespace
}  // namespace kvcache::server::page::prefix_rows_test
