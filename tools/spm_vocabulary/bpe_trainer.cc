#include "spm_vocabulary/bpe_trainer.h"

#include <map>
#include <unordered_set>

#include "spm_vocabulary/pair_trainer.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/pre_tokenizer.h"

namespace kvcache::spm_vocabulary {
namespace {

using Words = std::map<std::string, std::int64_t>;

Words CountWords(std::string_view text, std::string_view pre) {
  constexpr std::size_t kUncutBytes = 40;
  Words words;
  const auto count = [&words](std::string_view word) { ++words[std::string(word)]; };
  if (pre != kUncut) {
    const PreTokenizer& known = **FindPreTokenizer(pre);
    CutText(known.stages, text.data(), text.data() + text.size(), count);
  }
  for (; pre == kUncut && text.size() > kUncutBytes; text.remove_prefix(kUncutBytes)) {
    count(text.substr(0, kUncutBytes));
  }
  return words;
}

PairTrainer MakeTrainer(const Words& words) {
  PairTrainer trainer;
  for (const auto& [word, count] : words) {
    std::vector<std::string> bytes;
    for (const char c : word) bytes.emplace_back(1, c);
    trainer.AddWord(bytes, count);
  }
  return trainer;
}

void AddToken(const std::string& text, TokenKind kind, TokenizerData* data) {
  data->tokens.push_back(text);
  data->types.push_back(static_cast<std::int32_t>(kind));
}

}  // namespace

TokenizerData BuildBpeVocabulary(std::string_view text, int size, std::string_view pre,
                                 const std::vector<std::string>& control_tokens) {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = pre;
  data.compose = false;  // the text is taken as it is
  for (int byte = 0; byte < 256; ++byte) {
    AddToken(SpellBytes(std::string(1, static_cast<char>(byte))), TokenKind::kNormal, &data);
  }
  PairTrainer trainer = MakeTrainer(CountWords(text, pre));
  std::unordered_set<std::string> merged;
  while (data.tokens.size() < static_cast<std::size_t>(size)) {
    const PairTrainer::Merge merge = trainer.MergeBest();
    if (merge.left.empty()) break;
    data.merges.push_back(SpellBytes(merge.left) + " " + SpellBytes(merge.right));
    const std::string result = SpellBytes(merge.left + merge.right);
    // Another merge may give the same token; the merge is added, the token is not.
    if (merged.insert(result).second) AddToken(result, TokenKind::kNormal, &data);
  }
  for (const std::string& token : control_tokens) AddToken(token, TokenKind::kControl, &data);
  return data;
}

}  // namespace kvcache::spm_vocabulary
