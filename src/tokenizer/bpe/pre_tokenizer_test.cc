#include "tokenizer/bpe/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvcache::pre_tokenizer_test {
namespace {

using Words = std::vector<std::string>;

Words Cut(std::string_view pre, std::string_view text) {
  const auto known = FindPreTokenizer(pre);
  EXPECT_TRUE(known.ok()) << pre;
  Words words;
  CutText((*known)->stages, text.data(), text.data() + text.size(),
          [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

struct Row {
  const char* pre;
  const char* text;
  Words expected;
};

void ExpectCuts(const std::vector<Row>& rows) {
  for (const Row& row : rows) EXPECT_EQ(Cut(row.pre, row.text), row.expected) << row.pre;
}

TEST(PreTokenizerTest, CutsWordsWithTheirLead) {
  ExpectCuts({
      {"gpt-2", "Hello world.", {"Hello", " world", "."}},
      {"gpt-2", "a\tb (c)", {"a", "\t", "b", " (", "c", ")"}},
      {"llama-bpe", "Hello world.", {"Hello", " world", "."}},
      {"llama-bpe", "a\tb (c)", {"a", "\tb", " (", "c", ")"}},
      {"llama-bpe", "!a \na", {"!a", " \n", "a"}},
      {"qwen2", "наука и 中文，好", {"наука", " и", " 中文", "，好"}},
      {"tekken", ".net", {".net"}},
      {"deepseek-v3", ".café", {".caf", "é"}},
  });
}

TEST(PreTokenizerTest, DeepSeekLlmCutsAtSignsAndAtTheEndOfSpaces) {
  ExpectCuts({
      {"deepseek-llm", "Hello world.\r\n", {"Hello", " world", ".", "\r", "\n"}},
      {"deepseek-llm", "a  b  ", {"a", " ", " b", "  "}},
      {"deepseek-llm", "né (x)", {"n", "é", " (", "x", ")"}},
      {"deepseek-llm", "一二 三12 ٣x", {"一二", " ", "三", "12", " ", "٣", "x"}},
      {"deepseek-llm", "Привет мир", {"Привет", " мир"}},
      {"deepseek-llm", "！“x”\u3000。", {"！", "“", "x", "”", "\u3000", "。"}},
  });
}

TEST(PreTokenizerTest, CutsContractions) {
  ExpectCuts({
      {"gpt-2", "don't WE'LL", {"don", "'t", " WE", "'", "LL"}},
      {"llama-bpe", "don't WE'LL", {"don", "'t", " WE", "'LL"}},
      {"llama-bpe", "it'sx 'rE' 'l", {"it", "'s", "x", " '", "rE", "'", " '", "l"}},
      {"gpt-4o", "don't WE'LL", {"don't", " WE'LL"}},
      {"tekken", "don't", {"don", "'t"}},
      {"ufakzeka", "Ankara'dan", {"Ankara", "'dan"}},
      {"qwen2", "'", {"'"}},
  });
}

TEST(PreTokenizerTest, CutsNumbers) {
  ExpectCuts({
      {"gpt-2", "x 12345", {"x", " 12345"}},
      {"llama-bpe", "x 12345", {"x", " ", "123", "45"}},
      {"qwen2", "x 12½", {"x", " ", "1", "2", "½"}},
      {"smollm", "x  12", {"x", "  ", "1", "2"}},
      {"deepseek-v3", "1234", {"123", "4"}},
      {"minicpm5", "1234a", {"123", "4", "a"}},
      {"default", "12345", {"123", "45"}},
      {"falcon", "x 12345", {"x", " ", "123", "45"}},
  });
}

TEST(PreTokenizerTest, CutsSpacesAndLines) {
  ExpectCuts({
      {"gpt-2", "a   b", {"a", "  ", " b"}},
      {"gpt-2", "a  ", {"a", "  "}},
      {"gpt-2", "a\n\nb", {"a", "\n", "\n", "b"}},
      {"llama-bpe", "a\n\nb", {"a", "\n\n", "b"}},
      {"llama-bpe", "a \n \n  b", {"a", " \n \n", " ", " b"}},
      {"llama-bpe", "a.\r\n\nb", {"a", ".\r\n\n", "b"}},
      {"seed-coder", "a.\nb", {"a", ".", "\n", "b"}},
      {"gpt-4o", "a//\n//b", {"a", "//\n//", "b"}},
      {"laguna", "a.\n\nb", {"a", ".", "\n\n", "b"}},
      {"llama-bpe", "\u3000\u3000x", {"\u3000", "\u3000x"}},
  });
}

TEST(PreTokenizerTest, CutsAtUpperCase) {
  ExpectCuts({
      {"tekken", "camelCase HTTPServer", {"camel", "Case", " HTTPServer"}},
      {"tekken", "ABC", {"ABC"}},
      {"tekken", "éABC", {"é", "ABC"}},
      {"tekken", "ABéCD ", {"ABé", "CD", " "}},
      {"gpt-4o", "ÉCOLEs", {"ÉCOLEs"}},
      {"gpt-4o", "éÉcole ÉCOLE écoleB", {"é", "École", " ÉCOLE", " école", "B"}},
      {"gpt-4o", "हिन्दी में", {"हिन्दी", " में"}},
      {"gpt-4o", "e\u0301A\u0301B", {"e\u0301", "A\u0301", "B"}},
      {"gpt-4o", "\u0301AB \u0301ab", {"\u0301", "AB", " \u0301ab"}},
      {"gpt-4o", "中A中B", {"中A中", "B"}},
  });
}

TEST(PreTokenizerTest, CutsAtCombiningMarks) {
  ExpectCuts({
      {"qwen2", "e\u0301a", {"e", "\u0301a"}},
      {"qwen35", "e\u0301a", {"e\u0301a"}},
      {"qwen35", "!\u0301", {"!\u0301"}},
      {"deepseek-v3", "e\u0301a", {"e\u0301a"}},
      {"gpt-2", "e\u0301a", {"e", "\u0301", "a"}},
  });
}

TEST(PreTokenizerTest, CutsRunsOutOfTheText) {
  ExpectCuts({
      {"deepseek-v3", "ab中文かcd", {"ab", "中文か", "cd"}},
      {"deepseek-v3", "\x01\x02 a", {"\x01\x02", " a"}},
      {"deepseek-coder", "a 中b", {"a", " ", "中", "b"}},
      {"deepseek-coder", "x = (1)\n", {"x", " =", " (", "1", ")", "\n"}},
      {"falcon", "a+=b", {"a", "+=", "b"}},
  });
}

TEST(PreTokenizerTest, CutsNumbersFromTheirEnd) {
  ExpectCuts({
      {"afmoe", "x 1234567", {"x", " ", "1", "234", "567"}},
      {"afmoe", "123456", {"123", "456"}},
      {"afmoe", "  12,1٣4५", {"  ", "12", ",", "1", "٣4५"}},
      {"tiny_aya", "    12345", {"    ", "12", "345"}},
      {"superbpe", "a, b 1234567x 12", {"a, b ", "1", "234", "567", "x ", "12"}},
      {"superbpe", "100²12345", {"100²12", "345"}},
      {"superbpe", "1234²", {"1", "234²"}},
  });
}

TEST(PreTokenizerTest, CutsHanFromOtherLetters) {
  ExpectCuts({
      {"kimi-k2", "ab中文Cd  中々x", {"ab", "中文", "Cd", " ", " ", "中々", "x"}},
      {"kimi-k2", "camelCase 1234//\n", {"camel", "Case", " ", "123", "4", "//\n"}},
      {"youtu", "ab中文。。한글 ㄅ12", {"ab", "中文", "。。", "한글", " ", "ㄅ", "1", "2"}},
      {"afmoe", "ພາສາab", {"ພາສາ", "ab"}},
  });
}

TEST(PreTokenizerTest, CutsPhrases) {
  ExpectCuts({
      {"exaone-moe", "to be  or not! e\u0301 a", {"to be", " ", " or not", "!", " e\u0301 a"}},
      {"exaone-moe", "a.\n\nb!/x", {"a", ".\n", "\n", "b", "!/", "x"}},
  });
}

TEST(PreTokenizerTest, CutsSpacesToPowers) {
  ExpectCuts({
      {"jais-2", "a       b", {"a", "    ", "  ", " b"}},
      {"jais-2", "a       ", {"a", "    ", "  ", " "}},
      {"jais-2", "a \n  b", {"a", " \n", " ", " b"}},
      {"spark2_5", "a.\n\n \nb", {"a", ".", "\n", "\n", " ", "\n", "b"}},
      {"chameleon", "a\t\n       b", {"a", "\t", "\n", "    ", "  ", " b"}},
  });
}

TEST(PreTokenizerTest, CutsAtSeparators) {
  ExpectCuts({
      {"bloom", "Hello,  world。x)", {"Hello", ", ", " world", "。", "x", ")"}},
      {"viking", "a12 b", {"a", "1", "2", " b"}},
      {"chameleon", "<sentinel:12>", {"<", "sentinel", ":", "1", "2", ">"}},
      {"chameleon", "aIMGIMGABCZ", {"a", "IMGIMGABCZ"}},
      {"chameleon", "IMGIMGABCDEZ", {"IMGIMGABCDEZ"}},
  });
}

TEST(PreTokenizerTest, FindsNamesOrListsThemInTheError) {
  EXPECT_EQ((*FindPreTokenizer(""))->name, "default");
  std::set<std::string_view> names;
  for (const PreTokenizer& known : PreTokenizers()) {
    EXPECT_TRUE(names.insert(known.name).second) << known.name;
    EXPECT_EQ(*FindPreTokenizer(known.name), &known);
  }
  const auto unknown = FindPreTokenizer("klingon");
  EXPECT_EQ(unknown.status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(unknown.status().message().starts_with(
      "pre-tokenizer 'klingon' is not supported; supported: default, llama-bpe, "))
      << unknown.status().message();
  EXPECT_NE(unknown.status().message().find("qwen2"), std::string::npos);
}

TEST(PreTokenizerTest, WordsAddUpToTheText) {
  const std::vector<std::string> parts = {"a",  "B",  "é",  "1",      "½",  " ",   "\n",
                                          "\r", "\t", "'",  "s",      "re", "!",   "/",
                                          "+",  "中", "か", "\u0301", "😀",  "\x01"};
  std::mt19937_64 random(3);
  for (const PreTokenizer& known : PreTokenizers()) {
    for (int round = 0; round < 200; ++round) {
      std::string text;
      for (std::uint64_t n = random() % 30; n > 0; --n) text += parts[random() % parts.size()];
      std::string together;
      for (const std::string& word : Cut(known.name, text)) {
        EXPECT_FALSE(word.empty());
        together += word;
      }
      EXPECT_EQ(together, text) << known.name;
    }
  }
}

}  // namespace
}  // namespace kvcache::pre_tokenizer_test
