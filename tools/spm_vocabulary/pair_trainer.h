// The training that all BPE vocabularies share: words as rows of symbols, in which the pair of
// neighbours that occurs most often is merged, again and again.
//
// Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword
// Units", 2016.
// Thread safety: belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache::spm_vocabulary {

class PairTrainer {
 public:
  struct Merge {
    std::string left;
    std::string right;
  };

  // A word that occurs `count` times, as the texts of its first symbols.
  void AddWord(const std::vector<std::string>& symbols, std::int64_t count);

  // The texts of the first symbols by descending frequency.
  std::vector<std::string> Symbols() const;

  // Merges the most frequent pair: its texts, both empty when no pair occurs twice. What they
  // merge to may have come about in another way before. REQUIRES: no more AddWord().
  Merge MergeBest();

 private:
  using Symbol = std::uint32_t;
  using Pair = std::pair<Symbol, Symbol>;
  using QueueEntry = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

  struct Word {
    std::vector<Symbol> symbols;
    std::int64_t count = 0;
  };
  struct PairUse {
    std::int64_t count = 0;
    std::vector<std::size_t> words;  // in which it may occur
  };

  Symbol SymbolOf(const std::string& text);
  void CountPairs(std::size_t w, int sign);
  void Apply(Pair pair, const std::string& text);
  void RequeueNeighbors(const std::vector<std::size_t>& words);

  std::vector<Word> words_;
  std::vector<std::string> texts_;  // by symbol
  std::vector<std::int64_t> frequency_;
  std::unordered_map<std::string, Symbol> symbols_;
  std::map<Pair, PairUse> pairs_;
  std::priority_queue<QueueEntry> queue_;
};

}  // namespace kvcache::spm_vocabulary
