#include "spm_vocabulary/spm_trainer.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "spm_vocabulary/pair_trainer.h"
#include "tokenizer/escaped_space.h"
#include "tokenizer/spm/spm_merge.h"

namespace kvcache::spm_vocabulary {
namespace {

PairTrainer MakeTrainer(std::string_view text) {
  PairTrainer trainer;
  for (const auto& [word, count] : CountSpmWords(text)) {
    std::vector<std::string> characters;
    for (std::string_view rest = word; !rest.empty();
         rest.remove_prefix(characters.back().size())) {
      characters.emplace_back(SpmFirstCharacter(rest));
    }
    trainer.AddWord(characters, count);
  }
  return trainer;
}

std::string ByteText(int byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto high = static_cast<std::size_t>(byte / 16);
  const auto low = static_cast<std::size_t>(byte % 16);
  return {'<', '0', 'x', kDigits[high], kDigits[low], '>'};
}

}  // namespace

std::map<std::string, std::int64_t> CountSpmWords(std::string_view text) {
  std::map<std::string, std::int64_t> words;
  std::string word;
  for (const char c : text) {
    if (c == ' ' || c == '\n') {
      if (!word.empty()) ++words[word];
      word.clear();
    }
    if (c != ' ') {
      word += c;
    } else {
      word += kEscapedSpace;
    }
  }
  if (!word.empty()) ++words[word];
  return words;
}

void AddToken(std::string_view text, TokenKind kind, float score, TokenizerData* data) {
  data->tokens.emplace_back(text);
  data->types.push_back(static_cast<std::int32_t>(kind));
  data->scores.push_back(score);
}

TokenizerData BuildSpmVocabulary(std::string_view text, int size) {
  TokenizerData data;
  AddToken("<unk>", TokenKind::kUnknown, 0, &data);
  AddToken("<s>", TokenKind::kControl, 0, &data);
  AddToken("</s>", TokenKind::kControl, 0, &data);
  for (int byte = 0; byte < 256; ++byte) AddToken(ByteText(byte), TokenKind::kByte, 0, &data);

  PairTrainer trainer = MakeTrainer(text);
  const auto limit = static_cast<std::size_t>(size);
  std::vector<std::string> characters = trainer.Symbols();
  characters.resize(std::min(characters.size(), (limit - data.tokens.size()) / 3));
  std::unordered_set<std::string> merged;
  while (data.tokens.size() + characters.size() < limit) {
    const PairTrainer::Merge merge = trainer.MergeBest();
    const std::string best = merge.left + merge.right;
    if (best.empty()) break;
    if (!merged.insert(best).second) continue;  // an earlier merge gave the same text
    AddToken(best, TokenKind::kNormal, -static_cast<float>(merged.size()), &data);
  }
  for (const std::string& character : characters) {
    AddToken(character, TokenKind::kNormal, -static_cast<float>(data.tokens.size()), &data);
  }
  return data;
}

}  // namespace kvcache::spm_vocabulary
