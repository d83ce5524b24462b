// Reads any bytes as a unigram vocabulary, its normalisation and a text. Checks that nothing
// crashes, ids are in range, and, without a normalisation, tokens equal those of the reference
// implementation.
//
//   input   flags, number of tokens, then for each: length, score, type, bytes; with kCharsmap:
//           length in units of 16, bytes of the map (kWhole: the trie gets a whole block); then
//           the text
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_input.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode/utf8_stream.h"
#include "tokenizer/unigram/unigram_reference_testing.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxText = 256;  // the reference implementation is slow

enum Flag : std::uint8_t { kPrefix = 1, kMerge = 2, kCharsmap = 4, kWhole = 8, kTypes = 16 };

// Returns a map that is valid more often than raw bytes: its trie is a whole block, and its
// replacements are terminated.
std::string WholeMap(std::string bytes) {
  std::uint32_t trie = 256 * 4;
  std::string map(4 + trie, '\0');
  std::memcpy(map.data(), &trie, sizeof(trie));
  // The bytes are (index, value) pairs of trie units.
  while (bytes.size() > 5) {
    std::memcpy(map.data() + 4 + std::size_t{static_cast<std::uint8_t>(bytes[0])} * 4,
                bytes.data() + 1, 4);
    bytes.erase(0, 5);
  }
  return map + bytes + std::string("xy\0z\0", 5);
}

TokenizerData TakeVocabulary(std::string_view* input) {
  TokenizerData data;
  data.model = "t5";
  const std::uint8_t flags = TakeByte(input);
  data.add_space_prefix = (flags & kPrefix) != 0;
  data.remove_extra_spaces = (flags & kMerge) != 0;
  data.tokens = {"<pad>", "</s>", "<unk>"};
  data.types = {3, 3, 2};
  data.scores = {0, 0, 0};
  for (int n = TakeByte(input); n > 0; --n) {
    const std::uint8_t length = TakeByte(input);
    data.scores.push_back(static_cast<float>(static_cast<std::int8_t>(TakeByte(input))) / 4);
    data.types.push_back(TakeByte(input) % 8);
    data.tokens.push_back(TakeText(input, length % 24));
  }
  if ((flags & kTypes) == 0) data.types.clear();
  if ((flags & kCharsmap) != 0) {
    data.charsmap = TakeText(input, std::size_t{TakeByte(input)} * 16);
    if ((flags & kWhole) != 0) data.charsmap = WholeMap(data.charsmap);
  }
  return data;
}

// Returns whether the reference implementation applies: it has no user-defined tokens, no invalid
// UTF-8 in tokens, and no normalisation.
bool CanCompare(const TokenizerData& data, const Vocabulary& vocabulary) {
  for (const std::int32_t token : vocabulary.special_tokens()) {
    if (vocabulary.kind(token) == TokenKind::kUserDefined) return false;
  }
  for (const std::string& token : data.tokens) {
    if (!IsValidUtf8(token)) return false;
  }
  return data.charsmap.empty();
}

void CheckText(const Tokenizer& tokenizer, const TokenizerData& data, std::string_view text) {
  const EncodeOptions bare = {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo};
  const auto plain = tokenizer.Encode(text, bare);
  const auto parsed = tokenizer.Encode(text, {.special = SpecialText::kParse});
  Check(plain.ok() && parsed.ok());
  for (const std::int32_t id : *plain) Check(tokenizer.vocabulary().Has(id));
  for (const std::int32_t id : *parsed) Check(tokenizer.vocabulary().Has(id));
  Check(tokenizer.Decode(*plain).ok() && tokenizer.Decode(*parsed).ok());
  if (!CanCompare(data, tokenizer.vocabulary())) return;
  std::string repaired;
  const std::string normalized = unigram_reference::Normalize(
      RepairUtf8(text, &repaired), *data.add_space_prefix, *data.remove_extra_spaces);
  Check(unigram_reference::Encode(tokenizer.vocabulary(), normalized) == *plain);
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const TokenizerData data = TakeVocabulary(&input);
  const auto tokenizer = MakeTokenizer(data);
  if (!tokenizer.ok()) {
    Check(tokenizer.status().code() == StatusCode::kCorrupt);
    return 0;
  }
  CheckText(**tokenizer, data, input.substr(0, kMaxText));
  return 0;
}
