// Reads any bytes as a SentencePiece BPE vocabulary and a text. Checks that nothing crashes, ids
// are in range, tokens equal those of the reference implementation, and decoding returns the text.
//
//   input   flags, number of tokens, then for each: length, score, type, bytes; then the text
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_input.h"
#include "tokenizer/spm/spm_reference_testing.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxText = 256;  // the reference implementation is slow

enum Flag : std::uint8_t { kBase = 1, kScores = 2, kTypes = 4, kSpacePrefix = 8, kStrips = 16 };

void AddToken(const std::string& text, float score, std::int32_t type, TokenizerData* data) {
  data->tokens.push_back(text);
  data->scores.push_back(score);
  data->types.push_back(type);
}

// Adds the tokens without which a vocabulary cannot encode every text.
void AddBase(TokenizerData* data) {
  AddToken("<unk>", 0, 2, data);
  AddToken("<s>", 0, 3, data);
  AddToken("</s>", 0, 3, data);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    AddToken({'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'}, 0, 6, data);
  }
  AddToken("\u2581", 0, 1, data);
}

TokenizerData TakeVocabulary(std::string_view* input, std::uint8_t* flags) {
  TokenizerData data;
  *flags = TakeByte(input);
  if ((*flags & kBase) != 0) AddBase(&data);
  data.add_space_prefix = (*flags & kSpacePrefix) != 0;
  for (int n = TakeByte(input); n > 0; --n) {
    const std::uint8_t length = TakeByte(input);
    const auto score = static_cast<float>(static_cast<std::int8_t>(TakeByte(input)));
    const std::uint8_t type = TakeByte(input);
    if ((*flags & kStrips) != 0 && type >= 128) data.strip_before.push_back(data.tokens.size());
    if ((*flags & kStrips) != 0 && type % 2 == 1) data.strip_after.push_back(data.tokens.size());
    AddToken(TakeText(input, length % 24), score, type % 128 % 8, &data);
  }
  if ((*flags & kScores) == 0) data.scores.clear();
  if ((*flags & kTypes) == 0) data.types.clear();
  return data;
}

void CheckRange(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  for (const std::int32_t id : ids) Check(tokenizer.vocabulary().Has(id));
}

bool RoundTrips(std::string_view text) {
  return IsValidUtf8(text) && text.find("\u2581") == std::string_view::npos;
}

void CheckText(const Tokenizer& tokenizer, std::string_view text, std::uint8_t flags) {
  const EncodeOptions bare = {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo};
  const auto plain = tokenizer.Encode(text, bare);
  const auto parsed = tokenizer.Encode(text, {.special = SpecialText::kParse});
  Check(plain.ok() && parsed.ok());
  CheckRange(tokenizer, *plain);
  CheckRange(tokenizer, *parsed);
  Check(*tokenizer.Encode(text, bare) == *plain);  // repeatable

  bool has_user_defined = false;
  for (const std::int32_t token : tokenizer.vocabulary().special_tokens()) {
    has_user_defined |= tokenizer.vocabulary().kind(token) == TokenKind::kUserDefined;
  }
  if (!has_user_defined) Check(spm_reference::Encode(tokenizer.vocabulary(), text) == *plain);
  const auto decoded = tokenizer.Decode(*plain);
  Check(decoded.ok() && tokenizer.Decode(*parsed).ok());
  const bool whole = (flags & kBase) != 0 && (flags & kTypes) != 0 && (flags & kStrips) == 0;
  if (whole && RoundTrips(text)) Check(*decoded == text);

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
  CheckText(**tokenizer, input.substr(0, kMaxText), flags);
  return 0;
}
