// Reads tokenizers from files: the keys, and keys that are missing or odd.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::tokenizer_gguf_test {
namespace {

using Ids = std::vector<std::int32_t>;

Result<std::unique_ptr<Tokenizer>> FromFile(const std::function<void(GgufHeader*)>& fill) {
  GgufHeader header;
  header.SetString("general.architecture", "llama");
  fill(&header);
  KVCACHE_ASSIGN_OR_RETURN(const std::string bytes, header.Serialize());
  KVCACHE_ASSIGN_OR_RETURN(const auto file,
                           GgufFile::Parse(std::as_bytes(std::span(bytes)), "test.gguf"));
  return MakeTokenizer(*file);
}

void SetTokens(GgufHeader* header, std::string_view model = "llama") {
  header->SetString("tokenizer.ggml.model", model);
  header->SetStrings("tokenizer.ggml.tokens",
                     std::vector<std::string>{"<unk>", "<s>", "</s>", "▁a", "a", "<turn>"});
}

TEST(TokenizerGgufTest, ReadsAllKeys) {
  const auto tokenizer = FromFile([](GgufHeader* header) {
    SetTokens(header);
    header->SetFloats("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -1, -2.5f, 0});
    header->SetInts("tokenizer.ggml.token_type", std::vector<std::int32_t>{2, 3, 3, 1, 1, 4});
    header->SetUint32("tokenizer.ggml.bos_token_id", 2);
    header->SetUint32("tokenizer.ggml.eos_token_id", 1);
    header->SetUint32("tokenizer.ggml.eot_token_id", 5);
    header->SetUint32("tokenizer.ggml.unknown_token_id", 4);
    header->SetUint32("tokenizer.ggml.padding_token_id", 0xFFFFFFFFu);
    header->SetUint32("tokenizer.ggml.prefix_token_id", 3);
    header->SetBool("tokenizer.ggml.add_bos_token", false);
    header->SetBool("tokenizer.ggml.add_eos_token", true);
    header->SetBool("tokenizer.ggml.add_space_prefix", false);
  });
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const Vocabulary& v = (*tokenizer)->vocabulary();
  EXPECT_EQ(v.score(4), -2.5f);
  EXPECT_EQ(v.kind(5), TokenKind::kUserDefined);
  EXPECT_EQ(v.ids().bos, 2);
  EXPECT_EQ(v.ids().eos, 1);
  EXPECT_EQ(v.ids().eot, 5);
  EXPECT_EQ(v.ids().unknown, 4);
  EXPECT_EQ(v.ids().padding, kNoToken);
  EXPECT_EQ(v.ids().fim_prefix, 3);
  EXPECT_EQ(*(*tokenizer)->Encode("a"), (Ids{4, 1}));
}

TEST(TokenizerGgufTest, ReadsByteLevelBpe) {
  const auto tokenizer = FromFile([](GgufHeader* header) {
    header->SetString("tokenizer.ggml.model", "gpt2");
    header->SetString("tokenizer.ggml.pre", "llama-bpe");
    header->SetStrings("tokenizer.ggml.tokens",
                       std::vector<std::string>{"a", "b", "Ġ", "ab", "Ġab", "<|eot_id|>", "<s>"});
    header->SetInts("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1, 1, 1, 1, 3, 3});
    header->SetStrings("tokenizer.ggml.merges", std::vector<std::string>{"a b", "Ġ ab"});
    header->SetUint32("tokenizer.ggml.bos_token_id", 6);
  });
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ((*tokenizer)->Describe(), "byte-level BPE (llama-bpe), 7 tokens, bos 6, eot 5");
  EXPECT_EQ(*(*tokenizer)->Encode("ab ab"), (Ids{6, 3, 4}));
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(5));
}

// Ollama's files of some architectures name no pre-tokenizer.
TEST(TokenizerGgufTest, TheArchitectureNamesAMissingPreTokenizer) {
  const auto described = [](const char* architecture, const char* pre) {
    const auto tokenizer = FromFile([&](GgufHeader* header) {
      *header = {};
      header->SetString("general.architecture", architecture);
      header->SetString("tokenizer.ggml.model", "gpt2");
      header->SetStrings("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab"});
      if (pre != nullptr) header->SetString("tokenizer.ggml.pre", pre);
      header->SetStrings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
    });
    return tokenizer.ok() ? (*tokenizer)->Describe() : tokenizer.status().message();
  };
  EXPECT_NE(described("gptoss", nullptr).find("(gpt-4o)"), std::string::npos);
  EXPECT_NE(described("gptoss", "default").find("(gpt-4o)"), std::string::npos);
  EXPECT_NE(described("gptoss", "qwen2").find("(qwen2)"), std::string::npos);
  EXPECT_NE(described("mistral3", nullptr).find("(tekken)"), std::string::npos);
  EXPECT_EQ(described("llama", nullptr).find("(gpt-4o)"), std::string::npos);
}

TEST(TokenizerGgufTest, ReadsUnigram) {
  const auto tokenizer = FromFile([](GgufHeader* header) {
    header->SetString("tokenizer.ggml.model", "t5");
    header->SetStrings("tokenizer.ggml.tokens",
                       std::vector<std::string>{"<pad>", "</s>", "<unk>", "▁a", "a"});
    header->SetFloats("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -1, -1});
    header->SetInts("tokenizer.ggml.token_type", std::vector<std::int32_t>{3, 3, 2, 1, 1});
    header->SetBool("tokenizer.ggml.add_space_prefix", true);
    header->SetBool("tokenizer.ggml.remove_extra_whitespaces", true);
    // An empty trie, and one byte of replacements.
    header->SetInts("tokenizer.ggml.precompiled_charsmap",
                    std::vector<std::int32_t>{0, 0, 0, 0, 0});
  });
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(*(*tokenizer)->Encode(" a   aa "), (Ids{3, 3, 4, 1}));
}

TEST(TokenizerGgufTest, ReadsIntegerScores) {
  const auto tokenizer = FromFile([](GgufHeader* header) {
    SetTokens(header);
    header->SetInts("tokenizer.ggml.scores", std::vector<std::int32_t>{0, 0, 0, -1, -2, 0});
  });
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ((*tokenizer)->vocabulary().score(4), -2.0f);
}

TEST(TokenizerGgufTest, Phi3StripsWhiteSpaceAfterSpecialTokens) {
  for (const bool phi : {false, true}) {
    const auto tokenizer = FromFile([phi](GgufHeader* header) {
      SetTokens(header);
      header->SetString("general.name", phi ? "Phi-3 mini" : "other");
      header->SetInts("tokenizer.ggml.token_type", std::vector<std::int32_t>{2, 3, 3, 1, 1, 3});
    });
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    const Vocabulary& v = (*tokenizer)->vocabulary();
    EXPECT_EQ(v.StripsAfter(5), phi);
    EXPECT_EQ(v.StripsAfter(2), phi);
    EXPECT_FALSE(v.StripsAfter(1));
    EXPECT_EQ(*(*tokenizer)->Encode("a<turn>\n", {.special = SpecialText::kParse}),
              phi ? (Ids{1, 3, 5}) : (Ids{1, 3, 5, 0, 0}));
  }
}

TEST(TokenizerGgufTest, ErrorsNameTheKey) {
  struct Case {
    std::function<void(GgufHeader*)> fill;
    StatusCode code;
    std::string part;
  };
  const std::vector<Case> cases = {
      {[](GgufHeader*) {}, StatusCode::kNotFound, "tokenizer.ggml.model"},
      {[](GgufHeader* h) { h->SetString("tokenizer.ggml.model", "llama"); }, StatusCode::kNotFound,
       "tokenizer.ggml.tokens"},
      {[](GgufHeader* h) { h->SetString("tokenizer.ggml.model", "rwkv"); },
       StatusCode::kUnsupported, "'rwkv'"},
      {[](GgufHeader* h) { SetTokens(h, "gpt2"); }, StatusCode::kNotFound, "tokenizer.ggml.merges"},
      {[](GgufHeader* h) {
         SetTokens(h, "gpt2");
         h->SetString("tokenizer.ggml.pre", "klingon");
         h->SetStrings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
       },
       StatusCode::kUnsupported, "pre-tokenizer 'klingon' is not supported; supported: "},
      {[](GgufHeader* h) {
         SetTokens(h, "t5");
         h->SetString("tokenizer.ggml.precompiled_charsmap", "abc");
       },
       StatusCode::kInvalidArgument, "tokenizer.ggml.precompiled_charsmap"},
      {[](GgufHeader* h) { h->SetUint32("tokenizer.ggml.model", 1); }, StatusCode::kInvalidArgument,
       "tokenizer.ggml.model"},
      {[](GgufHeader* h) {
         SetTokens(h);
         h->SetString("tokenizer.ggml.scores", "high");
       },
       StatusCode::kInvalidArgument, "tokenizer.ggml.scores"},
      {[](GgufHeader* h) {
         SetTokens(h);
         h->SetInts("tokenizer.ggml.token_type", std::vector<std::int32_t>{1});
       },
       StatusCode::kCorrupt, "1 types for 6 tokens"},
      {[](GgufHeader* h) {
         SetTokens(h);
         h->SetString("tokenizer.ggml.bos_token_id", "1");
       },
       StatusCode::kInvalidArgument, "tokenizer.ggml.bos_token_id"},
  };
  for (const Case& c : cases) {
    const auto tokenizer = FromFile(c.fill);
    ASSERT_FALSE(tokenizer.ok()) << c.part;
    EXPECT_EQ(tokenizer.status().code(), c.code) << tokenizer.status().message();
    EXPECT_NE(tokenizer.status().message().find(c.part), std::string::npos)
        << tokenizer.status().message();
  }
}

}  // namespace
}  // namespace kvcache::tokenizer_gguf_test
