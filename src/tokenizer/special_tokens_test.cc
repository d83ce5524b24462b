#include "tokenizer/special_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <random>
#include <string>
#include <vector>

namespace kvcache::special_tokens_test {
namespace {

constexpr std::int32_t kControl = 3;
constexpr std::int32_t kUserDefined = 4;

Vocabulary MakeVocabulary(const TokenizerData& data) {
  auto vocabulary = Vocabulary::Make(data);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  return std::move(*vocabulary);
}

// Formats pieces as "a|[3]| b".
std::string Show(std::string_view text, const std::vector<TextPiece>& pieces) {
  std::string shown;
  for (const TextPiece& piece : pieces) {
    if (!shown.empty()) shown += '|';
    shown += piece.token == kNoToken
                 ? std::string(text.substr(piece.begin, piece.end - piece.begin))
                 : "[" + std::to_string(piece.token) + "]";
  }
  return shown;
}

TEST(SpecialTokensTest, CutsTheLongestFirstThenFromTheLeft) {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>", "ab", "bcd", "aa", "\n\n", "\n", "x"};
  data.types = {
      2, kControl, kControl, kUserDefined, kUserDefined, kUserDefined, kUserDefined, kUserDefined,
      1};
  const Vocabulary vocabulary = MakeVocabulary(data);
  const SpecialTokens special(vocabulary);
  struct Case {
    std::string text;
    std::string plain;
    std::string parsed;
  };
  const std::vector<Case> cases = {
      {"", "", ""},
      {"x", "x", "x"},
      {"<s>x</s>", "<s>x</s>", "[1]|x|[2]"},
      {"<unk><s", "<unk><s", "[0]|<s"},
      {"abcd", "a|[4]", "a|[4]"},
      {"abab", "[3]|[3]", "[3]|[3]"},
      {"aaaaa", "[5]|[5]|a", "[5]|[5]|a"},
      {"\n\n\n \n", "[6]|[7]| |[7]", "[6]|[7]| |[7]"},
      {"a<s>b", "a<s>b", "a|[1]|b"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Show(c.text, special.Cut(c.text, SpecialText::kPlain)), c.plain) << c.text;
    EXPECT_EQ(Show(c.text, special.Cut(c.text, SpecialText::kParse)), c.parsed) << c.text;
  }
}

TEST(SpecialTokensTest, StructureOnlyWhereTheTemplateWroteIt) {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>", "[A]", "<h1>", "<|b|>", "#u", "\n\n", "]<"};
  data.types = {2,        kControl,     kControl,     kUserDefined, kUserDefined,
                kControl, kUserDefined, kUserDefined, kUserDefined};
  const Vocabulary vocabulary = MakeVocabulary(data);
  const SpecialTokens special(vocabulary);
  const std::string text = "[A] <h1><|b|>#u\n\n";
  EXPECT_EQ(Show(text, special.Cut(text, SpecialText::kPlain)), "[A] |[4]|<|b|>|[6]|[7]");
  EXPECT_EQ(Show(text, special.Cut(text, SpecialText::kParse)), "[3]| |[4]|[5]|[6]|[7]");
  const std::vector<TextRange> all = {{0, text.size()}};
  EXPECT_EQ(Show(text, special.CutMarked(text, all, {})), "[A] |[4]|<|b|>|[6]|[7]");
  EXPECT_EQ(special.InLiterals(std::vector<std::string>{"x<h1>", "#", "[A]\n\n<|b|>", "#u"}),
            (std::vector<std::int32_t>{4, 6}));
  const std::vector<std::int32_t> in_literals = {4, 6};
  EXPECT_EQ(Show(text, special.CutMarked(text, all, in_literals)), "[A] <h1><|b|>#u|[7]");
  // A token that the template writes in this text is structure in it.
  const std::string twice = "#ux#u";
  const std::vector<TextRange> tail = {{2, 5}};
  EXPECT_EQ(Show(twice, special.CutMarked(twice, tail, {})), "[6]|x#u");
  // No text token takes part of a marker, however long it is.
  const std::string beside = "]<|b|>";
  const std::vector<TextRange> first = {{0, 1}};
  EXPECT_EQ(Show(beside, special.CutMarked(beside, first, {})), "]|[5]");
}

// A token that overlaps itself takes linear time, even if its occurrences touch foreign bytes.
TEST(SpecialTokensTest, ForeignRunsOfOneCharacterTakeLinearTime) {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>", std::string(1 << 14, '='),
                 "x" + std::string(1 << 14, '=')};
  data.types = {2, kControl, kControl, kControl, kUserDefined};
  const Vocabulary vocabulary = MakeVocabulary(data);
  const SpecialTokens special(vocabulary);
  const std::string text = "x" + std::string(1 << 20, '=');
  const std::vector<TextRange> all = {{0, text.size()}};
  const std::vector<std::int32_t> literals = {4};
  EXPECT_EQ(special.CutMarked(text, all, literals).size(), 1u);
  // Only one gap is long enough for the token.
  std::vector<TextRange> some;
  for (std::size_t at = 0; at < text.size() / 2; at += 2) some.push_back({at, at + 1});
  some.push_back({text.size() - 100, text.size()});
  const std::vector<TextPiece> pieces = special.CutMarked(text, some, literals);
  ASSERT_GT(pieces.size(), 2u);
  EXPECT_EQ(pieces.front().token, kNoToken);
  EXPECT_EQ(pieces[1].begin, some[some.size() - 2].end);
  EXPECT_EQ(pieces[1].token, 3);
  EXPECT_LE(pieces[pieces.size() - 2].end, text.size() - 100);
}

TEST(SpecialTokensTest, StripsWhiteSpace) {
  TokenizerData data;
  data.tokens = {"<unk>", "<l>", "<r>", "<b>"};
  data.types = {2, kControl, kControl, kControl};
  data.strip_before = {1, 3};
  data.strip_after = {2, 3};
  const Vocabulary vocabulary = MakeVocabulary(data);
  const SpecialTokens special(vocabulary);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a \n<l> b", "a|[1]| b"}, {"a <r>\t\v b", "a |[2]|b"}, {"a <b> b", "a|[3]|b"},
      {" <b> ", "[3]"},          {"<r> <l>", "[2]|[1]"},      {"<b>\xC2\xA0", "[3]|\xC2\xA0"},
      {"<unk> <l>", "[0]|[1]"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(Show(text, special.Cut(text, SpecialText::kParse)), expected) << text;
  }
}

// Implements the rule literally: one token after another, over a list of pieces.
std::vector<TextPiece> CutSlowly(const Vocabulary& v, std::string_view text, SpecialText mode) {
  std::list<TextPiece> pieces;
  if (!text.empty()) pieces.push_back({0, text.size(), kNoToken});
  const auto space = [&](std::size_t i) {
    return std::string_view(" \t\n\v\f\r").find(text[i]) != std::string_view::npos;
  };
  for (const std::int32_t token : v.special_tokens()) {
    if (mode == SpecialText::kPlain && v.IsStructure(token)) continue;
    for (auto it = pieces.begin(); it != pieces.end(); ++it) {
      if (it->token != kNoToken) continue;
      const std::size_t at = text.substr(0, it->end).find(v.text(token), it->begin);
      if (at == std::string_view::npos) continue;
      std::size_t left = at;
      std::size_t right = at + v.text(token).size();
      if (v.StripsBefore(token))
        while (left > it->begin && space(left - 1)) --left;
      if (left > it->begin) pieces.insert(it, {it->begin, left, kNoToken});
      pieces.insert(it, {at, right, token});
      if (v.StripsAfter(token))
        while (right < it->end && space(right)) ++right;
      if (right < it->end) pieces.insert(std::next(it), {right, it->end, kNoToken});
      it = std::prev(pieces.erase(it));
    }
  }
  return {pieces.begin(), pieces.end()};
}

TEST(SpecialTokensTest, MatchesTheReferenceOnRandomTexts) {
  std::mt19937 random(11);
  const auto word = [&random](std::size_t longest) {
    std::string text;
    for (std::size_t n = 1 + random() % longest; n > 0; --n) text += "ab \n"[random() % 4];
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    TokenizerData data;
    data.tokens = {"<unk>"};
    data.types = {2};
    for (std::size_t n = random() % 12; n > 0; --n) {
      const std::string text = word(5);
      if (std::find(data.tokens.begin(), data.tokens.end(), text) != data.tokens.end()) continue;
      const auto id = static_cast<std::int64_t>(data.tokens.size());
      data.tokens.push_back(text);
      data.types.push_back(random() % 3 == 0 ? kControl : kUserDefined);
      if (random() % 4 == 0) data.strip_before.push_back(id);
      if (random() % 4 == 0) data.strip_after.push_back(id);
    }
    const Vocabulary vocabulary = MakeVocabulary(data);
    const SpecialTokens special(vocabulary);
    for (int i = 0; i < 30; ++i) {
      const std::string text = word(30);
      for (const SpecialText mode : {SpecialText::kPlain, SpecialText::kParse}) {
        EXPECT_EQ(Show(text, special.Cut(text, mode)),
                  Show(text, CutSlowly(vocabulary, text, mode)));
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::special_tokens_test
