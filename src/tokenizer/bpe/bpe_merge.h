// Merges the bytes of a word, lowest rank first, the leftmost pair among equal ranks: the core of
// byte-level BPE.
//
// A word of up to 32 bytes is an array of symbols and an array of the merges of its pairs; each
// step scans the arrays. A longer word is a linked list with a tree of maxima over the ranks
// (max_tree.h), so that no word takes more than O(n log n).
//
// Thread safety: belongs to one call.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/bpe_merges.h"
#include "tokenizer/max_tree.h"

namespace kvcache {

class BpeMerge {
 public:
  explicit BpeMerge(const BpeMerges& merges) : merges_(merges) {}

  // Merges `word` (not empty, less than 2^31 bytes) and visits the remaining symbols from left to
  // right.
  template <typename Visitor>
  void Run(std::string_view word, const Visitor& visit) {
    if (word.size() <= kShortWordBytes) {
      const std::size_t count = MergeShort(word);
      for (std::size_t i = 0; i < count; ++i) visit(symbols_[i]);
    } else {
      MergeLong(word);
      for (std::uint32_t i = 0; i != End(); i = parts_[i].next) visit(parts_[i].symbol);
    }
  }

 private:
  static constexpr std::size_t kShortWordBytes = 32;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Part {
    BpeSymbol symbol;
    BpeSymbol merged;    // result of merging with the next part, if the priority is not 0
    std::uint32_t prev;  // kNone before the first
    std::uint32_t next;  // End() after the last
  };

  std::uint32_t End() const { return static_cast<std::uint32_t>(parts_.size()); }
  std::size_t MergeShort(std::string_view word);
  void MergeLong(std::string_view word);
  void Split(std::string_view word);
  std::uint64_t Priority(std::uint32_t left, const BpeMerges::Merge& merge);
  void Update(std::uint32_t left);
  void Join(std::uint32_t left);

  const BpeMerges& merges_;
  std::array<BpeSymbol, kShortWordBytes> symbols_;
  std::array<BpeMerges::Merge, kShortWordBytes> pair_merges_;
  std::vector<Part> parts_;
  std::vector<std::uint64_t> priorities_;
  MaxTree tree_;
};

}  // namespace kvcache
