#include "embedding/input_texts.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <span>

#include "base/strings.h"
#include "gguf/gguf_writer.h"

namespace kvcache::input_texts_test {
namespace {

using Ids = std::vector<std::int32_t>;

// A tokenizer of a file's, and the texts made with it.
struct Model {
  std::unique_ptr<GgufFile> file;
  std::string bytes;
  std::unique_ptr<Tokenizer> tokenizer;

  explicit Model(const std::function<void(GgufHeader&)>& fill) {
    GgufHeader header;
    header.SetString("general.architecture", "bert");
    fill(header);
    bytes = *header.Serialize();
    file = std::move(GgufFile::Parse(std::as_bytes(std::span(bytes)), "test.gguf")).value();
    tokenizer = std::move(MakeTokenizer(*file)).value();
  }
  InputTexts Texts(int max_tokens) const {
    return std::move(InputTexts::Make(*file, *tokenizer, max_tokens)).value();
  }
};

// 0 [PAD], 1 [UNK], 2 [CLS], 3 [SEP], 4 a, 5 b, 6 c
void FillWordPiece(GgufHeader& header) {
  header.SetString("tokenizer.ggml.model", "bert");
  header.SetStrings("tokenizer.ggml.tokens",
                    std::vector<std::string>{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581a",
                                             "\u2581b", "\u2581c"});
  header.SetInts("tokenizer.ggml.token_type", std::vector<std::int32_t>{3, 2, 3, 3, 1, 1, 1});
  header.SetUint32("tokenizer.ggml.bos_token_id", 2);
  header.SetUint32("tokenizer.ggml.unknown_token_id", 1);
  header.SetUint32("tokenizer.ggml.seperator_token_id", 3);
}

TEST(InputTexts, HaveTheVocabularysBeginAndEnd) {
  const Model model(FillWordPiece);
  const InputTexts texts = model.Texts(8);
  EXPECT_EQ(*texts.Encode("a b", LongInput::kRefuse), (Ids{2, 4, 5, 3}));
  EXPECT_EQ(*texts.Encode("", LongInput::kRefuse), (Ids{2, 3}));
  // Typed text is no special token.
  EXPECT_EQ((*texts.Encode("[SEP]", LongInput::kRefuse)).front(), 2);
  const Ids typed = *texts.Encode("[SEP]", LongInput::kRefuse);
  EXPECT_EQ(std::count(typed.begin(), typed.end(), 3), 1);
}

TEST(InputTexts, AreRefusedOrCutIfLong) {
  const Model model(FillWordPiece);
  const InputTexts texts = model.Texts(4);
  EXPECT_EQ(*texts.Encode("a b", LongInput::kRefuse), (Ids{2, 4, 5, 3}));
  const auto refused = texts.Encode("a b c", LongInput::kRefuse);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(), "the input has 5 tokens; the model reads at most 4");
  EXPECT_EQ(*texts.Encode("a b c", LongInput::kTruncate), (Ids{2, 4, 5, 3})) << "ends with [SEP]";
}

TEST(InputTexts, PairsOfWordPieceHaveOneSeparatorBetween) {
  const Model model(FillWordPiece);
  const InputTexts texts = model.Texts(7);
  EXPECT_EQ(*texts.EncodePair("a", "b c", LongInput::kRefuse), (Ids{2, 4, 3, 5, 6, 3}));
  EXPECT_FALSE(texts.EncodePair("a", "b c b c", LongInput::kRefuse).ok());
  EXPECT_EQ(*texts.EncodePair("a", "b c b c", LongInput::kTruncate), (Ids{2, 4, 3, 5, 6, 5, 3}));
  EXPECT_FALSE(texts.EncodePair("a b c a b c", "a", LongInput::kTruncate).ok())
      << "a query is never cut";
}

// 0 <unk>, 1 <s>, 2 </s>, 3 \u2581, 4 a, 5 b
void FillUnigram(GgufHeader& header) {
  header.SetString("tokenizer.ggml.model", "t5");
  header.SetStrings(
      "tokenizer.ggml.tokens",
      std::vector<std::string>{"<unk>", "<s>", "</s>", "\u2581", "\u2581a", "\u2581b"});
  header.SetFloats("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -3, -1, -1});
  header.SetInts("tokenizer.ggml.token_type", std::vector<std::int32_t>{2, 3, 3, 1, 1, 1});
  header.SetUint32("tokenizer.ggml.bos_token_id", 1);
  header.SetUint32("tokenizer.ggml.eos_token_id", 2);
  header.SetUint32("tokenizer.ggml.unknown_token_id", 0);
  header.SetBool("tokenizer.ggml.add_space_prefix", true);
  header.SetBool("tokenizer.ggml.add_bos_token", true);
  header.SetBool("tokenizer.ggml.add_eos_token", true);
}

TEST(InputTexts, PairsOfUnigramsHaveTwoSeparatorsBetween) {
  const Model model(FillUnigram);
  EXPECT_EQ(*model.Texts(16).EncodePair("a", "b a", LongInput::kRefuse),
            (Ids{1, 4, 2, 2, 5, 4, 2}));
  const Model once([](GgufHeader& header) {
    FillUnigram(header);
    header.SetBool("tokenizer.ggml.add_sep_token", false);
  });
  EXPECT_EQ(*once.Texts(16).EncodePair("a", "b", LongInput::kRefuse), (Ids{1, 4, 2, 5, 2}));
}

// 0 <s>, 1 </s>, 2 a, 3 b, 4 ab
void FillRoberta(GgufHeader& header, const char* pre) {
  header.SetString("tokenizer.ggml.model", "gpt2");
  header.SetString("tokenizer.ggml.pre", pre);
  header.SetStrings("tokenizer.ggml.tokens",
                    std::vector<std::string>{"<s>", "</s>", "a", "b", "ab"});
  header.SetInts("tokenizer.ggml.token_type", std::vector<std::int32_t>{3, 3, 1, 1, 1});
  header.SetStrings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  header.SetUint32("tokenizer.ggml.bos_token_id", 0);
  header.SetUint32("tokenizer.ggml.eos_token_id", 1);
  header.SetBool("tokenizer.ggml.add_bos_token", true);
  header.SetBool("tokenizer.ggml.add_eos_token", true);
}

TEST(InputTexts, OlderFilesOfJinaAndRobertaHaveTwoSeparatorsBetween) {
  const auto pair = [](const char* pre, std::optional<bool> twice) {
    const Model model([&](GgufHeader& header) {
      FillRoberta(header, pre);
      if (twice) header.SetBool("tokenizer.ggml.add_sep_token", *twice);
    });
    return *model.Texts(16).EncodePair("a", "b", LongInput::kRefuse);
  };
  for (const char* pre : {"jina-v1-en", "jina-v2-code", "roberta-bpe"}) {
    EXPECT_EQ(pair(pre, std::nullopt), (Ids{0, 2, 1, 1, 3, 1})) << pre;
    EXPECT_EQ(pair(pre, false), (Ids{0, 2, 1, 3, 1})) << pre;
  }
  EXPECT_EQ(pair("jina-v2-de", std::nullopt), (Ids{0, 2, 1, 3, 1}));
  EXPECT_EQ(pair("jina-v2-de", true), (Ids{0, 2, 1, 1, 3, 1}));
}

// Counts the texts that are encoded. A token is a byte.
class CountingTokenizer final : public Tokenizer {
 public:
  explicit CountingTokenizer(Vocabulary vocabulary) : Tokenizer(std::move(vocabulary)) {}
  std::string_view KindName() const override { return "counting"; }
  mutable int encoded = 0;

 protected:
  void EncodePlain(std::string_view text, Ids* out) const override {
    ++encoded;
    out->insert(out->end(), text.begin(), text.end());
  }
  void AppendText(std::int32_t, std::string*) const override {}
  bool AddsSpaceAfter(std::int32_t) const override { return false; }
};

TEST(InputTexts, PairsOfOneQueryEncodeItOnce) {
  const Model model(FillWordPiece);
  TokenizerData data;
  for (int i = 0; i < 256; ++i) data.tokens.push_back(StrCat("t", i));
  const CountingTokenizer tokenizer(std::move(Vocabulary::Make(data)).value());
  const InputTexts texts = std::move(InputTexts::Make(*model.file, tokenizer, 100)).value();
  const Ids first = *texts.EncodePair("query", "one", LongInput::kRefuse);
  const int both = tokenizer.encoded;
  EXPECT_EQ(both, 2);
  EXPECT_NE(*texts.EncodePair("query", "two", LongInput::kRefuse), first);
  EXPECT_EQ(tokenizer.encoded, both + 1);
  EXPECT_EQ(*texts.EncodePair("query", "one", LongInput::kTruncate), first);
  EXPECT_EQ(tokenizer.encoded, both + 2);
  EXPECT_NE(*texts.EncodePair("other", "one", LongInput::kRefuse), first);
  EXPECT_EQ(tokenizer.encoded, both + 4);
  EXPECT_EQ(*texts.EncodePair("query", "one", LongInput::kRefuse), first);
}

TEST(InputTexts, PairsFillAFilesTemplate) {
  const auto with_template = [](const char* text) {
    return [text](GgufHeader& header) {
      FillUnigram(header);
      header.SetString("tokenizer.chat_template.rerank", text);
    };
  };
  const Model model(with_template("<s>a{query}</s>{document}</s>"));
  const InputTexts texts = model.Texts(10);
  EXPECT_EQ(*texts.EncodePair(" b", "a", LongInput::kRefuse), (Ids{1, 4, 5, 2, 4, 2}));
  // The text of a special token in a query or document is typed, not written by the template.
  const Ids typed = *texts.EncodePair("b", "</s>", LongInput::kRefuse);
  EXPECT_EQ(std::count(typed.begin(), typed.end(), 2), 2);
  const auto cut = texts.EncodePair("b", "a a a a a a a a a", LongInput::kTruncate);
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  EXPECT_EQ(cut->size(), 10u) << "all room is used";
  EXPECT_EQ(cut->back(), 2);
  EXPECT_FALSE(texts.EncodePair("b", "a a a a a a a a a", LongInput::kRefuse).ok());
  EXPECT_FALSE(texts.EncodePair("b b b b b b b b b", "a", LongInput::kTruncate).ok())
      << "a query is never cut";

  const Model half(with_template("{query}"));
  const auto refused = InputTexts::Make(*half.file, *half.tokenizer, 10);
  EXPECT_EQ(refused.status().message(), "tokenizer.chat_template.rerank has no {document}");
}

}  // namespace
}  // namespace kvcache::input_texts_test
