#include "grammar/token_mask.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar_automaton.h"
#include "grammar/grammar_testing.h"

namespace kvcache::token_mask_test {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const Grammar> SharedGrammarOf(const std::string& schema) {
  return std::make_shared<const Grammar>(*GrammarOfSchema(schema));
}

// A long text forgets the states behind it, and its length is counted to the end.
TEST(TokenMask, LongTextsTakeNoMoreMemory) {
  const auto table = std::make_shared<const TokenTable>(
      std::vector<std::string>{"", "", "\"", "a", "ab", "\xc3\xa9"}, std::vector<std::int32_t>{1});
  const auto allowed = [](TokenMask& mask) {
    std::vector<float> logits(6, 0.0f);
    EXPECT_TRUE(mask.Apply(logits));
    std::string tokens;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] == 0.0f) tokens += std::to_string(i);
    }
    return tokens;
  };
  TokenMask mask(table,
                 SharedGrammarOf(R"({"type": "string", "minLength": 9998, "maxLength": 10000})"));
  ASSERT_EQ(allowed(mask), "2");
  ASSERT_TRUE(mask.Take(2));
  for (int length = 0; length < 9998; length += 2) {
    if (length % 500 == 0) {
      ASSERT_EQ(allowed(mask), "345") << length;
    }
    ASSERT_TRUE(mask.Take(4)) << length;
  }
  EXPECT_EQ(allowed(mask), "2345");
  ASSERT_TRUE(mask.Take(3));
  EXPECT_EQ(allowed(mask), "235") << "one more character";
  ASSERT_TRUE(mask.Take(5));
  EXPECT_EQ(allowed(mask), "2");
  ASSERT_TRUE(mask.Take(2));
  EXPECT_TRUE(mask.complete());
}

// Unwanted tokens stay below the wanted ones, and nothing is lowered where no wanted one is left.
TEST(TokenMask, LowersWhatIsUnwanted) {
  const auto table = std::make_shared<const TokenTable>(
      std::vector<std::string>{"</s>", "{", "}", "\"a\"", ":1", ",", "\"b\""},
      std::vector<std::int32_t>{0});
  const Grammar open = *GrammarOfSchema(R"({"type": "object", "properties": {"a": {"const": 1}}})");
  TokenMask mask(table, std::make_shared<const Grammar>(*WantedPart(open)));
  const auto lowered = [&mask](std::vector<float> logits) {
    const std::vector<float> before = logits;
    const bool any = mask.Lower(logits, 2.0F);
    EXPECT_TRUE(any || logits == before);
    std::string tokens;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] < before[i]) tokens += std::to_string(i);
    }
    return any ? tokens : "none";
  };
  const std::vector<float> equal(7, 1.0F);
  EXPECT_EQ(lowered(equal), "023456");
  ASSERT_TRUE(mask.Take(1));
  EXPECT_EQ(lowered(equal), "01456");
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(lowered({1, 1, kNever, kNever, 1, 1, 1}), "none");
  ASSERT_TRUE(mask.Take(3));
  ASSERT_TRUE(mask.Take(4));
  EXPECT_EQ(lowered(equal), "013456");
  EXPECT_FALSE(mask.Take(5));
  EXPECT_EQ(lowered(equal), "none");
}

TEST(TokenMask, AllowsWhatTheAutomatonAllows) {
  std::mt19937 random(7);
  const std::string alphabet = "{}[]\":, abtruefalsn0123";
  std::vector<std::string> pieces = {"", "</s>"};
  for (int i = 0; i < 600; ++i) {
    std::string piece;
    const auto length = 1 + random() % 4;
    for (unsigned j = 0; j < length; ++j) piece += alphabet[random() % alphabet.size()];
    pieces.push_back(piece);
  }
  for (const char c : alphabet) pieces.emplace_back(1, c);
  const auto table = std::make_shared<const TokenTable>(pieces, std::vector<std::int32_t>{1});
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "boolean"},
      "b": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 321}}}})";
  for (int round = 0; round < 20; ++round) {
    TokenMask mask(table, SharedGrammarOf(schema));
    std::string text;
    for (int step = 0; step < 60 && !mask.complete(); ++step) {
      std::vector<float> logits(pieces.size(), 1.0f);
      ASSERT_TRUE(mask.Apply(logits)) << text;
      std::vector<std::int32_t> allowed;
      GrammarAutomaton automaton(*GrammarOfSchema(schema));
      const auto walk = [&](const std::string& bytes) {
        GrammarAutomaton::State state = automaton.start();
        for (const char c : bytes) state = automaton.Next(state, static_cast<unsigned char>(c));
        return state;
      };
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        bool expected = !pieces[i].empty() && walk(text + pieces[i]) != GrammarAutomaton::kDead;
        if (i == 1) expected = automaton.Accepts(walk(text));
        EXPECT_EQ(logits[i] == 1.0f, expected) << text << " then " << pieces[i];
        if (expected && i != 1) allowed.push_back(static_cast<std::int32_t>(i));
      }
      if (allowed.empty()) break;
      const std::int32_t token = allowed[random() % allowed.size()];
      ASSERT_TRUE(mask.Take(token));
      text += pieces[static_cast<std::size_t>(token)];
    }
    if (mask.complete()) {
      EXPECT_TRUE(Json::accept(text)) << text;
    }
    EXPECT_FALSE(mask.Take(0));
  }
}

}  // namespace
}  // namespace kvcache::token_mask_test
