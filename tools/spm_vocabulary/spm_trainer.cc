#include "spm_vocabulary/spm_trainer.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/spm_merge.h"

namespace kvcache::spm_vocabulary {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";
constexpr std::size_t kMostBytes = 48;  // of a piece

using Symbol = std::uint32_t;
using Pair = std::pair<Symbol, Symbol>;

struct Word {
  std::vector<Symbol> symbols;
  std::int64_t count = 0;
};

// The state of training: words as rows of symbols, and where each pair of symbols occurs.
class Trainer {
 public:
  explicit Trainer(std::string_view text) {
    for (const auto& [word, count] : CountWords(text)) AddWord(word, count);
    for (std::size_t w = 0; w < words_.size(); ++w) CountPairs(w, +1);
  }

  // The texts of the characters by descending frequency.
  std::vector<std::string> Characters() const {
    std::vector<Symbol> order(texts_.size());
    for (Symbol s = 0; s < order.size(); ++s) order[s] = s;
    std::stable_sort(order.begin(), order.end(),
                     [this](Symbol a, Symbol b) { return frequency_[a] > frequency_[b]; });
    std::vector<std::string> characters;
    for (const Symbol s : order) characters.push_back(texts_[s]);
    return characters;
  }

  // Merges the most frequent pair: its text, empty when there is none. Texts may recur.
  std::string MergeBest() {
    while (!queue_.empty()) {
      const auto [count, minus_left, minus_right] = queue_.top();
      const Pair pair(static_cast<Symbol>(-minus_left), static_cast<Symbol>(-minus_right));
      queue_.pop();
      const auto found = pairs_.find(pair);
      if (found == pairs_.end() || found->second.count != count || count < 2) continue;
      std::string text = texts_[pair.first] + texts_[pair.second];
      if (text.size() > kMostBytes) continue;
      Merge(pair, text);
      return text;
    }
    return "";
  }

 private:
  struct PairUse {
    std::int64_t count = 0;
    std::vector<std::size_t> words;  // in which it may occur
  };
  using QueueEntry = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

  static std::map<std::string, std::int64_t> CountWords(std::string_view text) {
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
        word += kSpace;
      }
    }
    if (!word.empty()) ++words[word];
    return words;
  }

  void AddWord(std::string_view text, std::int64_t count) {
    Word& word = words_.emplace_back();
    word.count = count;
    while (!text.empty()) {
      const std::string_view character = SpmFirstCharacter(text);
      word.symbols.push_back(SymbolOf(std::string(character)));
      frequency_[word.symbols.back()] += count;
      text.remove_prefix(character.size());
    }
  }

  Symbol SymbolOf(const std::string& text) {
    const auto [at, fresh] = symbols_.emplace(text, static_cast<Symbol>(texts_.size()));
    if (fresh) {
      texts_.push_back(text);
      frequency_.push_back(0);
    }
    return at->second;
  }

  void CountPairs(std::size_t w, int sign) {
    const Word& word = words_[w];
    for (std::size_t i = 1; i < word.symbols.size(); ++i) {
      const Pair pair(word.symbols[i - 1], word.symbols[i]);
      PairUse& use = pairs_[pair];
      use.count += sign * word.count;
      if (sign < 0) continue;
      use.words.push_back(w);
      queue_.emplace(use.count, -std::int64_t{pair.first}, -std::int64_t{pair.second});
    }
  }

  void Merge(Pair pair, const std::string& text) {
    const Symbol merged = SymbolOf(text);
    std::vector<std::size_t> words = std::move(pairs_[pair].words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (const std::size_t w : words) {
      CountPairs(w, -1);
      std::vector<Symbol> row;
      const std::vector<Symbol>& old = words_[w].symbols;
      for (std::size_t i = 0; i < old.size(); ++i) {
        const bool here = i + 1 < old.size() && old[i] == pair.first && old[i + 1] == pair.second;
        row.push_back(here ? merged : old[i]);
        if (here) ++i;
      }
      words_[w].symbols = std::move(row);
      CountPairs(w, +1);
    }
    RequeueNeighbours(words);
  }

  // Counts that fell stand in the queue too high, and are not taken there: enter them again.
  void RequeueNeighbours(const std::vector<std::size_t>& words) {
    for (const std::size_t w : words) {
      const std::vector<Symbol>& row = words_[w].symbols;
      for (std::size_t i = 1; i < row.size(); ++i) {
        const Pair pair(row[i - 1], row[i]);
        queue_.emplace(pairs_[pair].count, -std::int64_t{pair.first}, -std::int64_t{pair.second});
      }
    }
  }

  std::vector<Word> words_;
  std::vector<std::string> texts_;  // by symbol
  std::vector<std::int64_t> frequency_;
  std::unordered_map<std::string, Symbol> symbols_;
  std::map<Pair, PairUse> pairs_;
  std::priority_queue<QueueEntry> queue_;
};

std::string ByteText(int byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto high = static_cast<std::size_t>(byte / 16);
  const auto low = static_cast<std::size_t>(byte % 16);
  return {'<', '0', 'x', kDigits[high], kDigits[low], '>'};
}

}  // namespace

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

  Trainer trainer(text);
  const auto limit = static_cast<std::size_t>(size);
  std::vector<std::string> characters = trainer.Characters();
  characters.resize(std::min(characters.size(), (limit - data.tokens.size()) / 3));
  std::unordered_map<std::string, int> merged;
  while (data.tokens.size() + characters.size() < limit) {
    const std::string best = trainer.MergeBest();
    if (best.empty()) break;
    if (!merged.emplace(best, 0).second) continue;  // reached in another way before
    AddToken(best, TokenKind::kNormal, -static_cast<float>(merged.size()), &data);
  }
  for (const std::string& character : characters) {
    AddToken(character, TokenKind::kNormal, -static_cast<float>(data.tokens.size()), &data);
  }
  return data;
}

}  // namespace kvcache::spm_vocabulary
