#include <algorithm>

#include "oracle_vocabularies.h"
#include "spm_vocabulary/invented_text.h"
#include "spm_vocabulary/spm_trainer.h"

namespace kvcache {
namespace {

using spm_vocabulary::BuildSpmVocabulary;
using spm_vocabulary::InventedText;

// Adds a token, or returns the id that its text has.
std::int64_t Add(const std::string& text, TokenKind kind, TokenizerData* data) {
  const auto found = std::ranges::find(data->tokens, text);
  if (found != data->tokens.end()) return found - data->tokens.begin();
  data->tokens.push_back(text);
  data->types.push_back(static_cast<std::int32_t>(kind));
  return static_cast<std::int64_t>(data->tokens.size()) - 1;
}

std::string LowerCase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return text;
}

// Returns a vocabulary of the tokens of a SentencePiece vocabulary, and of ASCII letters.
TokenizerData Trained(bool folds) {
  const TokenizerData source = BuildSpmVocabulary(InventedText(12).Text(300000, 60), 4000);
  TokenizerData data;
  data.model = "bert";
  data.padding = Add("[PAD]", TokenKind::kControl, &data);
  data.unknown = Add("[UNK]", TokenKind::kControl, &data);
  data.bos = Add("[CLS]", TokenKind::kControl, &data);
  data.separator = Add("[SEP]", TokenKind::kControl, &data);
  for (std::size_t i = 0; i < source.tokens.size(); ++i) {
    if (source.types[i] != static_cast<std::int32_t>(TokenKind::kNormal)) continue;
    const std::string text = folds ? LowerCase(source.tokens[i]) : source.tokens[i];
    if (!text.empty()) Add(text, TokenKind::kNormal, &data);
  }
  for (char c = '!'; c <= '~'; ++c) {
    Add(std::string("▁") + c, TokenKind::kNormal, &data);
    if (c % 5 != 0) Add(std::string(1, c), TokenKind::kNormal, &data);
  }
  if (!folds) data.strip_accents = data.lowercase = false;
  return data;
}

}  // namespace

std::vector<OracleVocabulary> WordPieceVocabularies() {
  return {{"wordpiece", Trained(true), {.every = 2}},
          {"wordpiece-cased", Trained(false), {.every = 2, .first = 1}}};
}

}  // namespace kvcache
