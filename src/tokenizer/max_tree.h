// Keeps the maximum of many numbers that change one at a time.
//
//   numbers   n0 n1 n2 …                 padded to whole groups of 8 with zeros
//   level 1   max of [0, 8)  max of [8, 16) …
//   level 2   max of level 1's [0, 8) …        up to a level of 8 or fewer
//
// A change updates one group per level, and stops at the first level that does not change: O(log
// n).
//
// Thread safety: belongs to one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcache {

class MaxTree {
 public:
  // Sets all numbers. Cost: O(n) time, 9 bytes of memory per number.
  void Build(const std::vector<std::uint64_t>& numbers);

  // The largest number; 0 if there are none.
  std::uint64_t Max() const { return MaxOfGroup(levels_.back()); }

  // REQUIRES: i < numbers.size().
  void Set(std::uint32_t i, std::uint64_t number);

 private:
  static constexpr std::uint32_t kFanOut = 8;

  std::uint64_t MaxOfGroup(std::uint32_t first) const;

  std::vector<std::uint64_t> tree_;    // level after level
  std::vector<std::uint32_t> levels_;  // where each begins in tree_
};

}  // namespace kvcache
