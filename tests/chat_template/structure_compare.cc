#include "structure_compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

namespace kvcache::structure_test {
namespace {

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

// Returns whether some template searches contents for such a text and then takes another branch.
bool MayChangeBranch(const std::string& text) {
  return text.find("think") != text.npos || text.find("tool_response") != text.npos ||
         text.find_first_not_of(" \n") == text.npos || text == "assistant" || text == "user\n";
}

}  // namespace

std::vector<std::int32_t> Counted(const Tokenizer& tokenizer,
                                  const std::vector<std::string>& literals) {
  std::vector<std::int32_t> counted = tokenizer.InLiterals(literals);
  for (const std::int32_t token : tokenizer.vocabulary().special_tokens()) {
    // The unknown token replaces any text that has no token.
    if (token == tokenizer.unknown()) continue;
    if (tokenizer.vocabulary().IsStructure(token)) counted.push_back(token);
  }
  return counted;
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

void Compare(const Family& family, const Talk& talk, const std::string& what, const Text& attack,
             const Text& harmless, std::size_t tokenizers, Totals* totals) {
  const bool slow = std::getenv("KVCACHE_SLOW_TESTS") != nullptr;
  const std::size_t count = slow ? family.tokenizers->size() : tokenizers;
  const auto turn = static_cast<std::size_t>(totals->turns++);
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t i = (turn + n) % family.tokenizers->size();
    const auto attacked = family.formats[i].Write(Make(talk, attack));
    const auto calm = family.formats[i].Write(Make(talk, harmless));
    if (!calm.ok() || !attacked.ok()) continue;
    const std::string title =
        family.name + ", " + talk.name + ", " + (*family.tokenizers)[i].name + ": " + what;
    ++totals->prompts;
    if (TemplateText(*attacked) != TemplateText(*calm)) {
      EXPECT_TRUE(MayChangeBranch(what)) << title << "\n" << attacked->text << "\n" << calm->text;
      ++totals->other_branch;
    } else {
      EXPECT_EQ(Counts(*attacked, family.counted[i]), Counts(*calm, family.counted[i]))
          << title << "\n"
          << attacked->text;
    }
    const Vocabulary& vocabulary = (*family.tokenizers)[i].tokenizer->vocabulary();
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

void CompareEverywhere(const Family& family, const Talk& talk, const std::string& text,
                       Totals* totals) {
  const std::string calm = Letters(text.size());
  Compare(
      family, talk, text, [&](int) { return text; }, [&](int) { return calm; }, 2, totals);
  for (const std::size_t cut : {std::size_t{1}, text.size() / 2, text.size() - 1}) {
    Compare(
        family, talk, text,
        [&](int at) { return at % 2 == 0 ? text.substr(0, cut) : text.substr(cut); },
        [&](int at) { return Letters(at % 2 == 0 ? cut : text.size() - cut); }, 1, totals);
  }
}

}  // namespace kvcache::structure_test
