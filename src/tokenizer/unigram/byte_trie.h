// A trie of token texts, stored as a double array. Finds all tokens that a text begins with.
//
//   unit      the place of its children, and (token + 1) << 9 | label
//   label     the byte that leads to the unit, plus 1; 0: the unit is free
//   child     by byte b of a node with children at c: the unit at c ^ (b + 1)
//             if its label is b + 1
//
// No two nodes have their children at the same place, so a unit with the right label is a child of
// the node in question. Nodes without children have place 0, where no unit is stored.
//
// Source: J. Aoe, "An efficient digital search algorithm by using a double-array structure",
// 1989, with XOR in place of the sum.
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache {

class ByteTrie {
 public:
  static constexpr std::int32_t kMaxTokens = (1 << 23) - 1;

  ByteTrie() = default;

  // REQUIRES: no text is empty, no two are equal, and all tokens are below kMaxTokens.
  // Cost: O(bytes of all texts), and O(n log n) comparisons.
  explicit ByteTrie(std::vector<std::pair<std::string, std::int32_t>> texts);

  // Visits each token that `text` begins with, the shortest first: visit(token, bytes).
  template <typename Visitor>
  void ForEachPrefix(std::string_view text, const Visitor& visit) const {
    std::uint32_t children = root_;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::uint32_t label = std::uint32_t{static_cast<std::uint8_t>(text[i])} + 1;
      const Unit unit = units_[children ^ label];
      if ((unit.info & kLabelMask) != label) return;
      if (const std::uint32_t token = unit.info >> kLabelBits; token != 0) {
        visit(static_cast<std::int32_t>(token - 1), i + 1);
      }
      children = unit.children;
    }
  }

 private:
  static constexpr std::uint32_t kLabelBits = 9;
  static constexpr std::uint32_t kLabelMask = (1u << kLabelBits) - 1;
  static constexpr std::uint32_t kBlock = 1u << kLabelBits;

  struct Unit {
    std::uint32_t children = 0;
    std::uint32_t info = 0;
  };

  // A node whose children are not stored yet: the bytes at `depth` of texts [first, last).
  struct Task {
    std::uint32_t unit;  // kRoot: the root
    std::size_t first;
    std::size_t last;
    std::size_t depth;
  };
  static constexpr std::uint32_t kRoot = ~std::uint32_t{0};

  class Builder;

  std::vector<Unit> units_ = std::vector<Unit>(kBlock);
  std::uint32_t root_ = 0;
};

}  // namespace kvcache
