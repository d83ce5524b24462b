// The common part of training BPE vocabularies: words are lists of symbols, and the most frequent
// pair of neighbours is merged repeatedly.
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

  // Adds a word that occurs `count` times, given as the texts of its initial symbols.
  void AddWord(const std::vector<std::string>& symbols, std::int64_t count);

  // Returns the texts of the initial symbols by descending frequency.
  std::vector<std::string> Symbols() const;

  // Merges the most frequent pair. Returns its texts, both empty if no pair occurs twice. An
  // earlier merge of another pair may have given the same text. REQUIRES: AddWord is not called
  // again.
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
    std::vector<std::size_t> words;  // words in which the pair may occur
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
