#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "oracle_vocabularies.h"
#include "spm_vocabulary/invented_text.h"
#include "spm_vocabulary/spm_trainer.h"

namespace kvcache {
namespace {

using spm_vocabulary::AddToken;
using spm_vocabulary::BuildSpmVocabulary;
using spm_vocabulary::InventedText;

// Returns the merges of a SentencePiece vocabulary: every way to split a token into two tokens, the
// tokens with the best scores first.
std::vector<std::string> MergesOf(const TokenizerData& data) {
  std::vector<std::size_t> order(data.tokens.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return data.scores[i]; });
  std::unordered_set<std::string> texts;
  for (const std::size_t i : order) {
    if (data.types[i] == static_cast<std::int32_t>(TokenKind::kNormal))
      texts.insert(data.tokens[i]);
  }
  std::vector<std::string> merges;
  for (const std::size_t i : order) {
    const std::string& text = data.tokens[i];
    for (std::size_t cut = 1; cut < text.size() && texts.contains(text); ++cut) {
      const std::string left = text.substr(0, cut);
      const std::string right = text.substr(cut);
      if (texts.contains(left) && texts.contains(right)) merges.push_back(left + " " + right);
    }
  }
  return merges;
}

// Returns a vocabulary of characters. Kind "gpt2" has such vocabularies too, under the names of their pre-tokenizers.
TokenizerData Trained(std::string_view kind, std::string_view pre) {
  TokenizerData data = BuildSpmVocabulary(InventedText(11).Text(600000, 30), 5000);
  data.model = kind;
  data.pre = pre;
  for (const char* text : {"\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁▁"}) {
    if (std::ranges::find(data.tokens, text) == data.tokens.end()) {
      AddToken(text, TokenKind::kNormal, -3000, &data);
    }
  }
  data.merges = MergesOf(data);
  for (const char* text : {"<|turn>", "<turn|>"}) AddToken(text, TokenKind::kControl, 0, &data);
  for (const char* text : {"<|channel>", "abc"}) AddToken(text, TokenKind::kUserDefined, 0, &data);
  data.add_space_prefix = false;
  if (kind == "gpt2") {  // llama.cpp takes token 11 for an id that the file lacks
    data.bos = 1;
    data.eos = 2;
  }
  return data;
}

}  // namespace

std::vector<OracleVocabulary> GemmaVocabularies() {
  return {{"gemma4", Trained("gemma4", ""), {}},
          {"sarvam-moe", Trained("gpt2", "sarvam-moe"), {.every = 8}},
          {"granite-embed-multi-311m", Trained("gpt2", "granite-embed-multi-311m"), {.every = 8}}};
}

}  // namespace kvcache
