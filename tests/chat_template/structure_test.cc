// Checks that foreign text never becomes structure.
//
// Puts every special token of the vocabulary, of every type, into every place of a conversation
// that holds foreign text: whole, and cut into two parts that neighbouring places could join again.
// The prompt must have as many structure tokens as the same conversation with harmless letters, and
// no structure token may cover a foreign byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "chat_template/chat_format.h"
#include "structure_cases.h"
#include "structure_vocabularies.h"

namespace kvcache::structure_test {
namespace {

struct Family {
  std::string name;
  std::vector<ChatFormat> formats;                 // by tokenizer
  std::vector<std::vector<std::int32_t>> counted;  // by tokenizer: tokens that are structure
};

std::vector<Family> Families() {
  EXPECT_GE(Sources().size(), 12u);
  std::vector<Family> families;
  const auto add = [&families](const std::string& name, const auto& make,
                               const std::vector<std::string>& literals) {
    families.push_back({name, {}, {}});
    for (const Named& named : Tokenizers()) {
      auto format = make(*named.tokenizer);
      ASSERT_TRUE(format.ok()) << format.status().message();
      families.back().formats.push_back(std::move(format).value());
      std::vector<std::int32_t> counted = named.tokenizer->InLiterals(literals);
      for (const std::int32_t token : named.tokenizer->vocabulary().special_tokens()) {
        // The unknown token replaces any text that has no token.
        if (token == named.tokenizer->unknown()) continue;
        if (named.tokenizer->vocabulary().IsStructure(token)) counted.push_back(token);
      }
      families.back().counted.push_back(std::move(counted));
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

ChatInput Make(const Talk& talk, const Text& text) {
  ChatInput input = talk.make(text);
  input.now = std::tm{};
  input.now->tm_mday = 1;
  return input;
}

std::string Letters(std::size_t bytes) {
  return std::string(bytes, 'q');
}

// Returns the bytes of a prompt that the template wrote, with a zero byte for each foreign range.
std::string TemplateText(const ChatPrompt& prompt) {
  std::string own;
  std::size_t at = 0;
  for (const TextRange& range : prompt.foreign) {
    own.append(prompt.text, at, range.begin - at);
    own += '\0';
    at = range.end;
  }
  return own.append(prompt.text, at);
}

std::map<std::int32_t, std::ptrdiff_t> Counts(const ChatPrompt& prompt,
                                              const std::vector<std::int32_t>& counted) {
  std::map<std::int32_t, std::ptrdiff_t> counts;
  for (const std::int32_t token : counted) {
    counts[token] = std::count(prompt.marked.tokens.begin(), prompt.marked.tokens.end(), token);
  }
  return counts;
}

struct Totals {
  int turns = 0;
  int prompts = 0;
  int other_branch = 0;
};

// Returns whether some template searches contents for such a text and then takes another branch.
bool MayChangeBranch(const std::string& text) {
  return text.find("think") != text.npos || text.find("tool_response") != text.npos ||
         text.find_first_not_of(" \n") == text.npos || text == "assistant" || text == "user\n";
}

// Compares the two prompts for `tokenizers` of the tokenizers, others in each call. With
// KVCACHE_SLOW_TESTS it compares them for all tokenizers.
void Compare(const Family& family, const Talk& talk, const std::string& what, const Text& attack,
             const Text& harmless, std::size_t tokenizers, Totals* totals) {
  const bool slow = std::getenv("KVCACHE_SLOW_TESTS") != nullptr;
  const std::size_t count = slow ? Tokenizers().size() : tokenizers;
  const auto turn = static_cast<std::size_t>(totals->turns++);
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t i = (turn + n) % Tokenizers().size();
    const auto attacked = family.formats[i].Write(Make(talk, attack));
    const auto calm = family.formats[i].Write(Make(talk, harmless));
    if (!calm.ok() || !attacked.ok()) continue;
    const std::string title =
        family.name + ", " + talk.name + ", " + Tokenizers()[i].name + ": " + what;
    ++totals->prompts;
    if (TemplateText(*attacked) != TemplateText(*calm)) {
      EXPECT_TRUE(MayChangeBranch(what)) << title << "\n" << attacked->text << "\n" << calm->text;
      ++totals->other_branch;
    } else {
      EXPECT_EQ(Counts(*attacked, family.counted[i]), Counts(*calm, family.counted[i]))
          << title << "\n"
          << attacked->text;
    }
    const Vocabulary& vocabulary = Tokenizers()[i].tokenizer->vocabulary();
    for (const TokenAnchor& anchor : attacked->marked.anchors) {
      const std::int32_t token = attacked->marked.tokens[anchor.index];
      const auto& counted = family.counted[i];
      if (std::find(counted.begin(), counted.end(), token) == counted.end()) continue;
      const std::size_t end = anchor.byte + vocabulary.text(token).size();
      for (const TextRange& range : attacked->foreign) {
        EXPECT_TRUE(range.end <= anchor.byte || range.begin >= end) << title;
      }
    }
  }
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
        // The text is in all places at once.
        const std::string calm = Letters(text.size());
        Compare(
            family, talk, text, [&](int) { return text; }, [&](int) { return calm; }, 2, &totals);
        // The text is cut into two parts, which are in neighbouring places.
        for (const std::size_t cut : {std::size_t{1}, text.size() / 2, text.size() - 1}) {
          Compare(
              family, talk, text,
              [&](int at) { return at % 2 == 0 ? text.substr(0, cut) : text.substr(cut); },
              [&](int at) { return Letters(at % 2 == 0 ? cut : text.size() - cut); }, 1, &totals);
        }
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
