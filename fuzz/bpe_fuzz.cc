// Reads any bytes as a byte-level BPE vocabulary and a text. Checks that nothing crashes, ids are
// in range, tokens equal those of the reference implementation, and decoding returns the text.
//
//   input   flags, pre-tokenizer, number of tokens, then for each: length, type, bytes; number of
//           merges, then for each: length, length, bytes (kSpelled: in the alphabet of the file,
//           else raw bytes); then the text
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_input.h"
#include "tokenizer/bpe/bpe_reference_testing.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxText = 256;  // the reference implementation is slow

enum Flag : std::uint8_t { kBytes = 1, kSpelled = 2, kTypes = 4, kResults = 8, kUnknown = 16 };

void AddToken(const std::string& text, std::int32_t type, TokenizerData* data) {
  data->tokens.push_back(text);
  data->types.push_back(type);
}

void AddIfNew(const std::string& text, TokenizerData* data) {
  for (const std::string& token : data->tokens) {
    if (token == text) return;
  }
  AddToken(text, 1, data);
}

void TakeTokens(std::string_view* input, std::uint8_t flags, TokenizerData* data) {
  for (int n = TakeByte(input) % 64; n > 0; --n) {
    const std::uint8_t length = TakeByte(input);
    const std::uint8_t type = TakeByte(input);
    const std::string text = TakeText(input, length % 16);
    AddToken((flags & kSpelled) != 0 ? text : SpellBytes(text), type % 8, data);
  }
}

void TakeMerges(std::string_view* input, std::uint8_t flags, TokenizerData* data) {
  for (int n = TakeByte(input) % 64; n > 0; --n) {
    const std::uint8_t left_length = TakeByte(input);
    const std::uint8_t right_length = TakeByte(input);
    const std::string left = TakeText(input, left_length % 16);
    const std::string right = TakeText(input, right_length % 16);
    if ((flags & kSpelled) != 0) {
      data->merges.push_back(left + right);
    } else {
      data->merges.push_back(SpellBytes(left) + " " + SpellBytes(right));
    }
    if ((flags & kResults) != 0) AddIfNew(SpellBytes(left + right), data);
  }
}

TokenizerData TakeVocabulary(std::string_view* input, std::uint8_t* flags) {
  TokenizerData data;
  data.model = "gpt2";
  *flags = TakeByte(input);
  const auto known = PreTokenizers();
  data.pre = known[TakeByte(input) % known.size()].name;
  for (int byte = 0; (*flags & kBytes) != 0 && byte < 256; ++byte) {
    AddToken(SpellBytes(std::string(1, static_cast<char>(byte))), 1, &data);
  }
  TakeTokens(input, *flags, &data);
  TakeMerges(input, *flags, &data);
  if ((*flags & kTypes) == 0) data.types.clear();
  if ((*flags & kUnknown) != 0) data.unknown = 0;
  return data;
}

bool HasUserDefined(const Vocabulary& vocabulary) {
  for (const std::int32_t token : vocabulary.special_tokens()) {
    if (vocabulary.kind(token) == TokenKind::kUserDefined) return true;
  }
  return false;
}

void CheckText(const Tokenizer& tokenizer, const TokenizerData& data, std::string_view text,
               std::uint8_t flags) {
  const EncodeOptions bare = {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo};
  const auto plain = tokenizer.Encode(text, bare);
  const auto parsed = tokenizer.Encode(text, {.special = SpecialText::kParse});
  Check(plain.ok() && parsed.ok());
  for (const std::int32_t id : *plain) Check(tokenizer.vocabulary().Has(id));
  for (const std::int32_t id : *parsed) Check(tokenizer.vocabulary().Has(id));
  Check(*tokenizer.Encode(text, bare) == *plain);  // repeatable

  if (!HasUserDefined(tokenizer.vocabulary())) {
    const bpe_reference::Reference reference(data, tokenizer.vocabulary());
    Check(reference.Encode(text) == *plain);
  }
  const auto decoded = tokenizer.Decode(*plain);
  Check(decoded.ok() && tokenizer.Decode(*parsed, {.cleaning = SpaceCleaning::kPerFile}).ok());
  const bool whole = (flags & kBytes) != 0 && (flags & kTypes) == 0 && (flags & kUnknown) == 0;
  std::string repaired;
  if (whole) Check(*decoded == RepairUtf8(text, &repaired));

  std::string streamed;
  Utf8Stream stream;
  for (const std::int32_t id : *parsed) stream.Push(tokenizer.Piece(id), &streamed);
  stream.Flush(&streamed);
  Check(IsValidUtf8(streamed));
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  std::string_view input(reinterpret_cast<const char*>(bytes), size);
  std::uint8_t flags = 0;
  const TokenizerData data = TakeVocabulary(&input, &flags);
  const auto tokenizer = MakeTokenizer(data);
  if (!tokenizer.ok()) {
    Check(tokenizer.status().code() == StatusCode::kCorrupt);
    return 0;
  }
  CheckText(**tokenizer, data, input.substr(0, kMaxText), flags);
  return 0;
}
