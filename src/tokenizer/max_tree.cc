#include "tokenizer/max_tree.h"

#include <algorithm>

namespace kvcache {

void MaxTree::Build(const std::vector<std::uint64_t>& numbers) {
  const auto round_up = [](std::uint32_t n) {
    return std::max((n + kFanOut - 1) / kFanOut * kFanOut, kFanOut);
  };
  levels_.assign(1, 0);
  tree_.assign(numbers.begin(), numbers.end());
  std::uint32_t width = round_up(static_cast<std::uint32_t>(numbers.size()));
  tree_.resize(width);
  while (width > kFanOut) {
    const std::uint32_t below = levels_.back();
    const auto level = static_cast<std::uint32_t>(tree_.size());
    levels_.push_back(level);
    for (std::uint32_t i = 0; i < width; i += kFanOut) tree_.push_back(MaxOfGroup(below + i));
    width = round_up(width / kFanOut);
    tree_.resize(level + width);
  }
}

std::uint64_t MaxTree::MaxOfGroup(std::uint32_t first) const {
  return *std::max_element(tree_.begin() + first, tree_.begin() + first + kFanOut);
}

void MaxTree::Set(std::uint32_t i, std::uint64_t number) {
  tree_[i] = number;
  for (std::size_t level = 1; level < levels_.size(); ++level) {
    const std::uint32_t group = i / kFanOut * kFanOut;
    i /= kFanOut;
    const std::uint64_t best = MaxOfGroup(levels_[level - 1] + group);
    if (tree_[levels_[level] + i] == best) return;
    tree_[levels_[level] + i] = best;
  }
}

}  // namespace kvcache
