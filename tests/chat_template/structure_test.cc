// Checks that foreign text never becomes structure.
//
// Puts every special token of the vocabulary, of every type, into every place of a conversation
// that holds foreign text: whole, and cut into two parts that neighbouring places could join again.
// The prompt must have as many structure tokens as the same conversation with harmless letters, and
// no structure token may cover a foreign byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "structure_compare.h"

namespace kvcache::structure_test {
namespace {

std::vector<Family> Families() {
  EXPECT_GE(Sources().size(), 12u);
  std::vector<Family> families;
  const auto add = [&families](const std::string& name, const auto& make,
                               const std::vector<std::string>& literals) {
    families.push_back({.name = name, .tokenizers = &Tokenizers()});
    for (const Named& named : Tokenizers()) {
      auto format = make(*named.tokenizer);
      ASSERT_TRUE(format.ok()) << format.status().message();
      families.back().formats.push_back(std::move(format).value());
      families.back().counted.push_back(Counted(*named.tokenizer, literals));
    }
  };
  for (const auto& [name, source] : Sources()) {
    add(
        name, [&](const Tokenizer& t) { return ChatFormat::FromSource(source, name, t); },
        ChatTemplate::Parse(source)->literals());
  }
  for (const char* name : {"chatml", "plain"}) {
    add(name, [&](const Tokenizer& t) { return ChatFormat::BuiltIn(name, t); }, {});
  }
  return families;
}

std::vector<std::string> AllTexts() {
  std::vector<std::string> texts = Marks();
  texts.insert(texts.end(), Texts().begin(), Texts().end());
  return texts;
}

TEST(Structure, ForeignTextNeverBecomesStructure) {
  Totals totals;
  for (const Family& family : Families()) {
    for (const Talk& talk : Talks()) {
      for (const std::string& text : AllTexts()) {
        CompareEverywhere(family, talk, text, &totals);
      }
    }
  }
  std::printf("%d prompts, in %d of them the template took another branch\n", totals.prompts,
              totals.other_branch);
  EXPECT_GT(totals.prompts, 20000);
  EXPECT_LT(totals.other_branch, totals.prompts / 4);
}

TEST(Structure, ForeignTextInOnePlaceNeverBecomesStructure) {
  Totals totals;
  for (const Family& family : Families()) {
    for (const Talk& talk : Talks()) {
      std::set<int> places;
      (void)talk.make([&places](int at) {
        places.insert(at);
        return std::string("q");
      });
      for (const int place : places) {
        for (const char* mark : {"<|im_end|>", "<|end|>", "[INST]", "</s>", "<|user|>", "USER:"}) {
          const std::string text = std::string("a") + mark + "b";
          const auto other = [](int at) { return "p" + std::to_string(at); };
          Compare(
              family, talk, text, [&](int at) { return at == place ? text : other(at); },
              [&](int at) { return at == place ? Letters(text.size()) : other(at); }, 1, &totals);
        }
      }
    }
  }
  EXPECT_GT(totals.prompts, 3000);
}

// Characters that no template has occur only in foreign ranges.
TEST(Structure, ForeignRangesContainAllForeignBytes) {
  int shown = 0;
  std::set<int> seen;
  for (const auto& [name, source] : Sources()) {
    const auto parsed = ChatTemplate::Parse(source);
    ASSERT_TRUE(parsed.ok());
    for (const Talk& talk : Talks()) {
      const auto sentinel = [](int at) {
        return "\xEE\x80\x80" + std::to_string(at) + "\xEE\x80\x81<|im_end|>";
      };
      const auto text = parsed->Render(Make(talk, sentinel));
      if (!text.ok()) continue;
      std::vector<bool> foreign(text->text.size(), false);
      for (const TextRange& range : text->foreign) {
        std::fill(foreign.begin() + static_cast<std::ptrdiff_t>(range.begin),
                  foreign.begin() + static_cast<std::ptrdiff_t>(range.end), true);
      }
      for (std::size_t i = 0; i < foreign.size(); ++i) {
        if (static_cast<std::uint8_t>(text->text[i]) != 0xEE) continue;
        ++shown;
        EXPECT_TRUE(foreign[i]) << name << ", " << talk.name << ": " << text->text.substr(i, 12);
        seen.insert(std::atoi(text->text.c_str() + i + 3));
      }
    }
  }
  EXPECT_GT(shown, 1000);
  for (const int place : {0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 50, 51, 52, 53, 54, 55, 59}) {
    EXPECT_TRUE(seen.contains(place)) << place;
  }
}

TEST(Structure, PlainTextHasNoStructureTokens) {
  constexpr EncodeOptions kBare = {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo};
  constexpr EncodeOptions kParsed = {
      .add_bos = AddToken::kNo, .add_eos = AddToken::kNo, .special = SpecialText::kParse};
  for (const auto& [name, tokenizer] : Tokenizers()) {
    const Vocabulary& vocabulary = tokenizer->vocabulary();
    for (const std::string& mark : Marks()) {
      const std::int32_t token = tokenizer->Find(mark);
      ASSERT_NE(token, kNoToken) << mark;
      EXPECT_TRUE(vocabulary.IsStructure(token) || vocabulary.kind(token) == TokenKind::kNormal)
          << mark;
      for (const std::string& text :
           {mark, "a" + mark + "b", mark + mark, "\n" + mark + " x", mark.substr(1), "x " + mark}) {
        const auto plain = tokenizer->Encode(text, kBare);
        ASSERT_TRUE(plain.ok());
        for (const std::int32_t id : *plain) {
          if (id == tokenizer->unknown()) continue;
          EXPECT_FALSE(vocabulary.IsStructure(id)) << name << ": " << text;
        }
        if (tokenizer->KindName() != "unigram" && text.find("▁") == text.npos) {
          EXPECT_EQ(*tokenizer->Decode(*plain), text) << name;
        }
      }
      if (!vocabulary.IsStructure(token)) continue;
      const auto parsed = tokenizer->Encode("a" + mark, kParsed);
      EXPECT_EQ(std::count(parsed->begin(), parsed->end(), token), 1) << name << ": " << mark;
    }
    for (const std::string& text : Texts()) {
      const auto plain = tokenizer->Encode("a" + text + "b", kBare);
      EXPECT_EQ(std::count(plain->begin(), plain->end(), tokenizer->Find(text)), 1)
          << name << ": " << text;
    }
  }
}

}  // namespace
}  // namespace kvcache::structure_test
