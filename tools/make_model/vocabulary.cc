#include "make_model/vocabulary.h"

#include <string>
#include <vector>

#include "base/strings.h"

namespace kvcache::make_model {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// GGUF's numbers for token types.
enum TokenType : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

std::string ByteToken(int byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

// Appends all words of `length` lower-case letters in alphabetical order, with `prefix`, until
// there are `size` pieces.
void AddWords(std::string_view prefix, int length, std::size_t size,
              std::vector<std::string>& pieces) {
  std::string word(static_cast<std::size_t>(length), 'a');
  while (pieces.size() < size) {
    pieces.push_back(StrCat(prefix, word));
    std::size_t last = word.size();
    while (last > 0 && word[last - 1] == 'z') word[--last] = 'a';
    if (last == 0) return;
    ++word[last - 1];
  }
}

std::vector<std::string> Pieces(std::size_t size) {
  std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) pieces.push_back(ByteToken(byte));
  if (pieces.size() < size) pieces.emplace_back(kSpace);
  for (char character = '!'; character <= '~' && pieces.size() < size; ++character) {
    pieces.emplace_back(1, character);
  }
  for (int length = 1; pieces.size() < size; ++length) {
    AddWords(kSpace, length, size, pieces);
    AddWords("", length + 1, size, pieces);
  }
  return pieces;
}

}  // namespace

void AddVocabulary(int size, const std::vector<std::string>& control_tokens, GgufHeader& header) {
  const std::size_t plain = static_cast<std::size_t>(size) - control_tokens.size();
  std::vector<std::string> pieces = Pieces(plain);
  pieces.insert(pieces.end(), control_tokens.begin(), control_tokens.end());
  std::vector<float> scores(pieces.size(), 0.0f);
  std::vector<std::int32_t> types(pieces.size(), kNormal);
  types[0] = kUnknown;
  types[1] = types[2] = kControl;
  for (std::size_t i = 3; i < kFixedPieces; ++i) types[i] = kByte;
  for (std::size_t i = plain; i < pieces.size(); ++i) types[i] = kControl;
  for (std::size_t i = kFixedPieces; i < pieces.size(); ++i) {
    scores[i] = -static_cast<float>(i - kFixedPieces);
  }
  header.SetString("tokenizer.ggml.model", "llama");
  header.SetStrings("tokenizer.ggml.tokens", pieces);
  header.SetFloats("tokenizer.ggml.scores", scores);
  header.SetInts("tokenizer.ggml.token_type", types);
  header.SetUint32("tokenizer.ggml.unknown_token_id", 0);
  header.SetUint32("tokenizer.ggml.bos_token_id", 1);
  header.SetUint32("tokenizer.ggml.eos_token_id", 2);
  header.SetBool("tokenizer.ggml.add_bos_token", true);
  header.SetBool("tokenizer.ggml.add_eos_token", false);
  header.SetBool("tokenizer.ggml.add_space_prefix", true);
}

}  // namespace kvcache::make_model
