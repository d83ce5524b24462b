#include "spm_vocabulary/pair_trainer.h"

#include <algorithm>

namespace kvcache::spm_vocabulary {
namespace {

constexpr std::size_t kMaxBytes = 48;  // maximum size of a piece

}  // namespace

void PairTrainer::AddWord(const std::vector<std::string>& symbols, std::int64_t count) {
  Word& word = words_.emplace_back();
  word.count = count;
  for (const std::string& text : symbols) {
    word.symbols.push_back(SymbolOf(text));
    frequency_[word.symbols.back()] += count;
  }
  CountPairs(words_.size() - 1, +1);
}

std::vector<std::string> PairTrainer::Symbols() const {
  std::vector<Symbol> order(texts_.size());
  for (Symbol s = 0; s < order.size(); ++s) order[s] = s;
  std::stable_sort(order.begin(), order.end(),
                   [this](Symbol a, Symbol b) { return frequency_[a] > frequency_[b]; });
  std::vector<std::string> texts;
  for (const Symbol s : order) texts.push_back(texts_[s]);
  return texts;
}

PairTrainer::Merge PairTrainer::MergeBest() {
  while (!queue_.empty()) {
    const auto [count, minus_left, minus_right] = queue_.top();
    const Pair pair(static_cast<Symbol>(-minus_left), static_cast<Symbol>(-minus_right));
    queue_.pop();
    const auto found = pairs_.find(pair);
    if (found == pairs_.end() || found->second.count != count || count < 2) continue;
    const Merge merge = {texts_[pair.first], texts_[pair.second]};
    if (merge.left.size() + merge.right.size() > kMaxBytes) continue;
    Apply(pair, merge.left + merge.right);
    return merge;
  }
  return {};
}

PairTrainer::Symbol PairTrainer::SymbolOf(const std::string& text) {
  const auto [at, fresh] = symbols_.emplace(text, static_cast<Symbol>(texts_.size()));
  if (fresh) {
    texts_.push_back(text);
    frequency_.push_back(0);
  }
  return at->second;
}

void PairTrainer::CountPairs(std::size_t w, int sign) {
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

void PairTrainer::Apply(Pair pair, const std::string& text) {
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
  RequeueNeighbors(words);
}

// Pairs whose counts fell have stale queue entries, which are ignored. Adds them with their new
// counts.
void PairTrainer::RequeueNeighbors(const std::vector<std::size_t>& words) {
  for (const std::size_t w : words) {
    const std::vector<Symbol>& row = words_[w].symbols;
    for (std::size_t i = 1; i < row.size(); ++i) {
      const Pair pair(row[i - 1], row[i]);
      queue_.emplace(pairs_[pair].count, -std::int64_t{pair.first}, -std::int64_t{pair.second});
    }
  }
}

}  // namespace kvcache::spm_vocabulary
