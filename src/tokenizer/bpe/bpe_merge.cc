#include "tokenizer/bpe/bpe_merge.h"

#include <algorithm>

namespace kvcache {
namespace {

std::uint8_t ByteAt(std::string_view word, std::size_t i) {
  return static_cast<std::uint8_t>(word[i]);
}

}  // namespace

// Returns how many symbols remain in symbols_.
std::size_t BpeMerge::MergeShort(std::string_view word) {
  std::size_t count = word.size();
  for (std::size_t i = 0; i < count; ++i) symbols_[i] = merges_.SymbolOf(ByteAt(word, i));
  for (std::size_t i = 0; i + 1 < count; ++i) {
    pair_merges_[i] = merges_.FindBytes(ByteAt(word, i), ByteAt(word, i + 1));
  }
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pair_merges_[i].rank < pair_merges_[best].rank) best = i;
    }
    if (pair_merges_[best].rank == BpeMerges::kNoRank) break;
    symbols_[best] = pair_merges_[best].result;
    --count;
    std::copy(symbols_.begin() + best + 2, symbols_.begin() + count + 1,
              symbols_.begin() + best + 1);
    if (best + 1 < count) {
      std::copy(pair_merges_.begin() + best + 2, pair_merges_.begin() + count,
                pair_merges_.begin() + best + 1);
      pair_merges_[best] = merges_.Find(symbols_[best], symbols_[best + 1]);
    }
    if (best > 0) pair_merges_[best - 1] = merges_.Find(symbols_[best - 1], symbols_[best]);
  }
  return count;
}

void BpeMerge::MergeLong(std::string_view word) {
  Split(word);
  tree_.Build(priorities_);
  for (std::uint64_t best = tree_.Max(); best != 0; best = tree_.Max()) {
    Join(~static_cast<std::uint32_t>(best));
  }
}

void BpeMerge::Split(std::string_view word) {
  parts_.clear();
  priorities_.clear();
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto at = static_cast<std::uint32_t>(i);
    parts_.push_back(
        {merges_.SymbolOf(ByteAt(word, i)), kNoSymbol, at == 0 ? kNone : at - 1, at + 1});
  }
  for (std::size_t i = 0; i + 1 < word.size(); ++i) {
    priorities_.push_back(Priority(static_cast<std::uint32_t>(i),
                                   merges_.FindBytes(ByteAt(word, i), ByteAt(word, i + 1))));
  }
  priorities_.push_back(0);
}

// Returns the priority of merging `left` with the next part; 0 if there is no merge. The priority
// is larger for a lower rank and, among equal ranks, further to the left.
std::uint64_t BpeMerge::Priority(std::uint32_t left, const BpeMerges::Merge& merge) {
  if (merge.rank == BpeMerges::kNoRank) return 0;
  parts_[left].merged = merge.result;
  return std::uint64_t{~merge.rank} << 32 | ~left;
}

void BpeMerge::Update(std::uint32_t left) {
  const Part& part = parts_[left];
  const bool last = part.next == End();
  tree_.Set(left, last ? 0 : Priority(left, merges_.Find(part.symbol, parts_[part.next].symbol)));
}

// Merges the next part into `left`.
void BpeMerge::Join(std::uint32_t left) {
  Part& part = parts_[left];
  const std::uint32_t removed = part.next;
  part.symbol = part.merged;
  part.next = parts_[removed].next;
  if (part.next != End()) parts_[part.next].prev = left;
  tree_.Set(removed, 0);
  Update(left);
  if (part.prev != kNone) Update(part.prev);
}

}  // namespace kvcache
