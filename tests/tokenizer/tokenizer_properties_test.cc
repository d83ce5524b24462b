// Checks properties of tokenizers over random texts: decoding returns the encoded text, at once or
// streamed.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <vector>

#include "spm_vocabulary/bpe_trainer.h"
#include "spm_vocabulary/invented_text.h"
#include "spm_vocabulary/spm_trainer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache::tokenizer_properties_test {
namespace {

using spm_vocabulary::AppendUtf8;
using spm_vocabulary::InventedText;

std::unique_ptr<Tokenizer> Train(bool add_space_prefix) {
  TokenizerData data = spm_vocabulary::BuildSpmVocabulary(InventedText(9).Text(400000, 40), 4000);
  spm_vocabulary::AddToken("<turn>", TokenKind::kControl, 0, &data);
  spm_vocabulary::AddToken("\n\n", TokenKind::kUserDefined, 0, &data);
  data.add_space_prefix = add_space_prefix;
  auto tokenizer = MakeTokenizer(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

const Tokenizer& Trained(bool add_space_prefix) {
  static const auto with = Train(true);
  static const auto without = Train(false);
  return add_space_prefix ? *with : *without;
}

std::vector<std::int32_t> Encode(const Tokenizer& tokenizer, std::string_view text,
                                 const EncodeOptions& options = {}) {
  auto tokens = tokenizer.Encode(text, options);
  RC_ASSERT(tokens.ok());
  return std::move(*tokens);
}

// Generates any code point that a text can hold, except U+2581, which is decoded as a space.
rc::Gen<char32_t> CodePoint() {
  const auto in = [](char32_t first, char32_t end) {
    return rc::gen::cast<char32_t>(rc::gen::inRange<std::uint32_t>(first, end));
  };
  return rc::gen::weightedOneOf<char32_t>({{4, in(' ', 0x7F)},
                                           {1, in(0, ' ')},
                                           {2, in(0x80, 0x2581)},
                                           {2, in(0x2582, 0xD800)},
                                           {1, in(0xE000, 0x10000)},
                                           {2, in(0x10000, 0x110000)}});
}

std::vector<std::string> KnownLines() {
  InventedText source(9);
  std::vector<std::string> lines;
  while (lines.size() < 500) {
    lines.push_back(source.CodeLine());
    lines.push_back(source.Sentence(source.Below(spm_vocabulary::Scripts().size())));
  }
  return lines;
}

// Generates code points, words that the vocabularies contain, or both.
rc::Gen<std::string> Text() {
  const auto odd = rc::gen::map(rc::gen::container<std::u32string>(CodePoint()),
                                [](const std::u32string& points) {
                                  std::string text;
                                  for (const char32_t point : points) AppendUtf8(point, &text);
                                  return text;
                                });
  static const std::vector<std::string> lines = KnownLines();
  const auto known = rc::gen::elementOf(lines);
  const auto both = rc::gen::map(rc::gen::pair(odd, known),
                                 [](const auto& parts) { return parts.first + parts.second; });
  return rc::gen::oneOf(odd, known, both);
}

rc::Gen<std::string> TextWithSpecials() {
  return rc::gen::map(
      rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(
          Text(), rc::gen::element<std::string>("<turn>", "</s>", "\n\n", " ", "<turn", "<s>"))),
      [](const std::vector<std::string>& parts) {
        std::string text;
        for (const std::string& part : parts) text += part;
        return text;
      });
}

TEST(TokenizerPropertiesTest, DecodingGivesTheTextBack) {
  EXPECT_TRUE(rc::check("plain", [](bool prefix) {
    const Tokenizer& tokenizer = Trained(prefix);
    const std::string text = *Text();
    RC_ASSERT(*tokenizer.Decode(Encode(tokenizer, text)) == text);
  }));
}

TEST(TokenizerPropertiesTest, DecodingGivesTheTextBackWithSpecialTokens) {
  EXPECT_TRUE(rc::check("parsed", [](bool prefix) {
    const Tokenizer& tokenizer = Trained(prefix);
    const std::string text = *TextWithSpecials();
    const auto tokens =
        Encode(tokenizer, text, {.add_bos = AddToken::kNo, .special = SpecialText::kParse});
    RC_ASSERT(*tokenizer.Decode(tokens, {.control = ControlText::kShown}) == text);
  }));
}

TEST(TokenizerPropertiesTest, StreamingGivesTheTextBack) {
  EXPECT_TRUE(rc::check("streamed", [](bool prefix) {
    const Tokenizer& tokenizer = Trained(prefix);
    std::string text = *Text();
    while (text.find("\n\n") != std::string::npos) text.erase(text.find("\n\n"), 1);
    std::string streamed;
    Utf8Stream stream;
    for (const std::int32_t token : Encode(tokenizer, text)) {
      stream.Push(tokenizer.Piece(token), &streamed);
      RC_ASSERT(IsValidUtf8(streamed));
    }
    RC_ASSERT(stream.pending_bytes() == 0);
    RC_ASSERT(streamed == (prefix && !text.empty() ? " " + text : text));
  }));
}

TEST(TokenizerPropertiesTest, TextsAroundASpecialTokenAreEncodedSeparately) {
  EXPECT_TRUE(rc::check("parted", [](bool prefix) {
    const Tokenizer& tokenizer = Trained(prefix);
    const EncodeOptions options = {.add_bos = AddToken::kNo, .special = SpecialText::kParse};
    const std::string left = *Text();
    const std::string right = *Text();
    std::vector<std::int32_t> expected = Encode(tokenizer, left, options);
    expected.push_back(tokenizer.Find("<turn>"));
    for (const std::int32_t token : Encode(tokenizer, right, options)) expected.push_back(token);
    RC_ASSERT(Encode(tokenizer, left + "<turn>" + right, options) == expected);
  }));
}

TEST(TokenizerPropertiesTest, AnyBytesGiveIdsInRange) {
  EXPECT_TRUE(rc::check("bytes", [](const std::vector<char>& bytes, bool prefix) {
    const Tokenizer& tokenizer = Trained(prefix);
    for (const std::int32_t token : Encode(tokenizer, std::string(bytes.begin(), bytes.end()))) {
      RC_ASSERT(tokenizer.vocabulary().Has(token));
    }
  }));
}

const std::vector<std::unique_ptr<Tokenizer>>& ByteLevel() {
  static const auto all = [] {
    std::vector<std::unique_ptr<Tokenizer>> tokenizers;
    const std::string text = InventedText(9).Text(60000, 40);
    for (const char* pre : {"llama-bpe", "qwen2", "gpt-2", "gpt-4o", "tekken", "deepseek-v3"}) {
      auto made = MakeTokenizer(spm_vocabulary::BuildBpeVocabulary(text, 1000, pre, {"<turn>"}));
      EXPECT_TRUE(made.ok()) << made.status().message();
      tokenizers.push_back(std::move(*made));
    }
    return tokenizers;
  }();
  return all;
}

TEST(TokenizerPropertiesTest, ByteLevelDecodingAndStreamingGiveTheTextBack) {
  EXPECT_TRUE(rc::check("byte level", [] {
    const std::string text = *TextWithSpecials();
    const EncodeOptions options = {.add_bos = AddToken::kNo, .special = SpecialText::kParse};
    for (const auto& tokenizer : ByteLevel()) {
      const auto tokens = Encode(*tokenizer, text, options);
      RC_ASSERT(*tokenizer->Decode(tokens, {.control = ControlText::kShown}) == text);
      std::string streamed;
      Utf8Stream stream;
      for (const std::int32_t token : tokens) {
        stream.Push(tokenizer->Piece(token, ControlText::kShown), &streamed);
        RC_ASSERT(IsValidUtf8(streamed));
      }
      RC_ASSERT(stream.pending_bytes() == 0);
      RC_ASSERT(streamed == text);
    }
  }));
}

}  // namespace
}  // namespace kvcache::tokenizer_properties_test
