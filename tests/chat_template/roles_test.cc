// Checks that templates produce the tokens that begin and end a conversation, and that typed text
// never does, whatever the token's type and text.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "chat_template/chat_format.h"
#include "tokenizer/bpe/byte_alphabet.h"

namespace kvcache::roles_test {
namespace {

constexpr EncodeOptions kBare = {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo};

std::string ByteToken(int byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">";
}

// Returns a vocabulary of `kind` with a token for each byte. Merges lead to `bos` and `eos`, whose
// type is `type`; nullopt: the file has no types.
TokenizerData MakeData(const std::string& kind, const std::string& bos, const std::string& eos,
                       std::optional<std::int32_t> type) {
  TokenizerData data;
  data.model = kind;
  const auto add = [&data](const std::string& text, std::int32_t of_type) {
    if (std::find(data.tokens.begin(), data.tokens.end(), text) != data.tokens.end()) return;
    data.tokens.push_back(text);
    data.types.push_back(of_type);
    data.scores.push_back(-1);
  };
  add("<unk>", 2);
  add(bos, type.value_or(1));
  add(eos, type.value_or(1));
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    if (kind == "gpt2") add(SpellBytes(text), 1);
    if (kind != "gpt2") add(ByteToken(byte), 6);
    if (kind != "gpt2" && byte > ' ' && byte < 0x7F) add(text, 1);
  }
  for (const std::string& text : {bos, eos}) {
    for (std::size_t length = 2; length <= text.size(); ++length) {
      add(text.substr(0, length), 1);
      data.merges.push_back(text.substr(0, length - 1) + " " + text.substr(length - 1, 1));
    }
  }
  data.merges.push_back("a b");
  data.unknown = 0;
  data.bos = 1;
  data.eos = 2;
  data.add_bos = false;
  data.add_eos = false;
  data.add_space_prefix = false;
  if (kind == "gpt2") data.pre = "llama-bpe";
  if (!type) data.types.clear();
  return data;
}

std::ptrdiff_t Count(const std::vector<std::int32_t>& tokens, std::int32_t token) {
  return std::count(tokens.begin(), tokens.end(), token);
}

// Returns the text that a person would type to get `token`.
std::string TypedText(const std::string& token) {
  return token == ByteToken('\n') ? "\n" : token;
}

void ExpectOnlyTemplatesWriteThem(const TokenizerData& data, const std::string& title) {
  const auto tokenizer = MakeTokenizer(data);
  ASSERT_TRUE(tokenizer.ok()) << title << ": " << tokenizer.status().message();
  const std::int32_t bos = (*tokenizer)->bos();
  const std::int32_t eos = (*tokenizer)->eos();
  for (const std::string& bos_text : {data.tokens[1], TypedText(data.tokens[1])}) {
    for (const std::string& eos_text : {data.tokens[2], TypedText(data.tokens[2])}) {
      const std::string typed = eos_text + "a" + bos_text + "a" + eos_text;
      const auto plain = (*tokenizer)->Encode(typed, kBare);
      EXPECT_EQ(Count(*plain, bos) + Count(*plain, eos), 0) << title << ": " << typed;
      const auto alone = (*tokenizer)->Encode(eos_text, kBare);
      EXPECT_EQ(Count(*alone, eos), 0) << title << ": " << eos_text;
      for (const char* source :
           {"{{ bos_token }}{% for m in messages %}({{ m.content }}){{ eos_token }}{% endfor %}",
            "{{ bos_token }}{% for m in messages %}{{ m.content ~ eos_token }}{% endfor %}"}) {
        const auto format = ChatFormat::FromSource(source, "test", **tokenizer);
        ChatInput input;
        input.messages.push_back({{"role", "user"}, {"content", typed}});
        const auto prompt = format->Write(input);
        ASSERT_TRUE(prompt.ok()) << prompt.status().message();
        EXPECT_EQ(Count(prompt->marked.tokens, bos), 1) << title << ": " << source;
        EXPECT_EQ(Count(prompt->marked.tokens, eos), 1) << title << ": " << source;
        EXPECT_EQ(prompt->marked.tokens.front(), bos) << title;
        EXPECT_EQ(prompt->marked.tokens.back(), eos) << title;
      }
    }
  }
}

TEST(Roles, OnlyTemplatesWriteBosAndEos) {
  const std::pair<const char*, const char*> shapes[] = {
      {"<s>", "</s>"},
      {"[BOS]", "[SEP]"},
      {"<|bos|>", "<|eos|>"},
      {"BOS", "EOS"},
      {"begin", "stop"},
      {"BOS:", "-- end --"},
      {"<h1>", "||"},
      {"^", "|"},
      {"{", "}"},
      {"BOS", "<0x0A>"},
      {"<begin_of_text>", "<0x0A>"},
  };
  for (const char* kind : {"llama", "gpt2", "t5", "gemma4"}) {
    for (const auto& [bos, eos] : shapes) {
      for (const std::optional<std::int32_t> type :
           {std::optional<std::int32_t>(), std::optional(0), std::optional(1), std::optional(3),
            std::optional(4), std::optional(5), std::optional(6)}) {
        const std::string title = std::string(kind) + ", " + bos + ", " + eos + ", type " +
                                  (type ? std::to_string(*type) : "none");
        ExpectOnlyTemplatesWriteThem(MakeData(kind, bos, eos, type), title);
      }
    }
  }
}

// A file without ids gets the default ids of its kind of vocabulary.
TEST(Roles, OnlyTemplatesWriteDefaultBosAndEos) {
  for (const std::int32_t type : {0, 1, 3, 4, 5}) {
    TokenizerData data = MakeData("llama", "BOS", "EOS", type);
    data.bos.reset();
    data.eos.reset();
    ExpectOnlyTemplatesWriteThem(data, "llama, default ids, type " + std::to_string(type));
  }
}

// A control token of one byte is not that byte's token.
TEST(Roles, BytesNeverBecomeControlTokens) {
  for (const char* text : {"|", "\n"}) {
    TokenizerData data;
    data.tokens = {"<unk>", "<s>", "</s>", text, "a", "b"};
    data.types = {2, 3, 3, 3, 1, 1};
    data.add_bos = false;
    data.add_space_prefix = false;
    const auto tokenizer = MakeTokenizer(data);
    ASSERT_TRUE(tokenizer.ok());
    const auto tokens = (*tokenizer)->Encode(std::string("a") + text + "b", kBare);
    EXPECT_EQ(*tokens, (std::vector<std::int32_t>{4, 0, 5})) << text;
  }
}

}  // namespace
}  // namespace kvcache::roles_test
