// A set of cells with a search for the next member in O(log64 cells).
//
//   level 2                     [ 1 ]                      a bit per word of level 1: not zero?
//   level 1          [ 1 1 0 1 … ]     [ 0 … ]             a bit per word of level 0: not zero?
//   level 0   [ 0110… ][ 1111… ][ 0000… ][ 1000… ] …       a bit per cell: a member?
//
// Thread safety: none. Nothing is allocated after Reset.
// Source: a hierarchical bitmap, which is a van Emde Boas tree with machine words as nodes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/prefetch.h"

namespace kvcache {

class FreeSet {
 public:
  static constexpr std::int32_t kNone = -1;

  // Makes all of [0, size) members. May throw std::bad_alloc, leaving the set unspecified.
  void Reset(std::int32_t size);

  std::int32_t count() const { return count_; }

  // REQUIRES: 0 <= cell < size.
  bool Contains(std::int32_t cell) const { return (words_[cell >> 6] >> (cell & 63)) & 1; }

  // REQUIRES: not a member.
  void Insert(std::int32_t cell);
  // REQUIRES: a member.
  void Erase(std::int32_t cell);

  // Asks memory for the bit of a cell. REQUIRES: 0 <= cell <= size.
  void Prefetch(std::int32_t cell) const { PrefetchToWrite(words_.data() + (cell >> 6)); }

  // Returns whether the 64 cells of the word are all members.
  bool IsFull(std::int32_t word) const { return words_[word] == ~std::uint64_t{0}; }

  // Returns the first member at or after `from`, or kNone. REQUIRES: from >= 0.
  std::int32_t NextFrom(std::int32_t from) const;

 private:
  // 64^6 exceeds any int32.
  static constexpr int kMaxLevels = 6;

  std::uint64_t Word(int level, std::int64_t word) const { return words_[begin_[level] + word]; }
  std::int64_t WordsOf(int level) const { return begin_[level + 1] - begin_[level]; }

  std::vector<std::uint64_t> words_;                  // all levels, level 0 first
  std::array<std::int64_t, kMaxLevels + 1> begin_{};  // level i's words: [begin_[i], begin_[i+1])
  int levels_ = 0;
  std::int32_t count_ = 0;
};

}  // namespace kvcache
