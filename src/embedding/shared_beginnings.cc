#include "embedding/shared_beginnings.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvcache {
namespace {

constexpr int kMaxLevels = 256;  // of recursion

class TreeBuilder {
 public:
  TreeBuilder(std::span<const std::vector<std::int32_t>> inputs, const SharingLimits& limits)
      : inputs_(inputs), limits_(limits), order_(inputs.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::sort(order_, [&](std::size_t a, std::size_t b) {
      return inputs[a] == inputs[b] ? a < b : inputs[a] < inputs[b];
    });
    common_.assign(order_.size(), 0);
    for (std::size_t i = 1; i < order_.size(); ++i) {
      const auto& before = inputs[order_[i - 1]];
      const auto& after = inputs[order_[i]];
      common_[i] =
          static_cast<std::size_t>(std::ranges::mismatch(before, after).in1 - before.begin());
    }
  }

  SharedBeginning Build() {
    SharedBeginning root;
    Split(root, {.first = 0, .last = order_.size(), .shared = 0}, 0);
    return root;
  }

 private:
  // Inputs [first, last) of the order, which share `shared` tokens.
  struct Range {
    std::size_t first = 0, last = 0;
    std::size_t shared = 0;
  };

  // Distributes the inputs, which begin with the node's tokens, on leaves and children.
  void Split(SharedBeginning& node, Range range, int level) {
    while (range.first < range.last) {
      const std::size_t end = EndOfGroup(range);
      const Range group{range.first, end, ShortestCommon(range.first, end)};
      const std::size_t saved = (end - range.first - 1) * (group.shared - node.end);
      range.first = end;
      if (end - group.first == 1 || level >= kMaxLevels) {
        for (std::size_t i = group.first; i < end; ++i) node.leaves.push_back(order_[i]);
      } else if (saved < limits_.min_saved_tokens || depth_ >= limits_.max_depth) {
        Split(node, group, level + 1);  // parts of the group may share more
      } else {
        AddChild(node, group, level);
      }
    }
  }

  void AddChild(SharedBeginning& node, const Range& group, int level) {
    SharedBeginning child{.input = order_[group.first], .begin = node.end, .end = group.shared};
    ++depth_;
    Split(child, group, level + 1);
    --depth_;
    node.children.push_back(std::move(child));
  }

  // Returns the end of the first inputs that share more than all of the range do.
  std::size_t EndOfGroup(const Range& range) const {
    std::size_t end = range.first + 1;
    while (end < range.last && common_[end] > range.shared) ++end;
    return end;
  }

  // Returns how many tokens all inputs [first, last) of the order begin with.
  std::size_t ShortestCommon(std::size_t first, std::size_t last) const {
    std::size_t shortest = inputs_[order_[first]].size();
    for (std::size_t i = first + 1; i < last; ++i) shortest = std::min(shortest, common_[i]);
    return shortest;
  }

  std::span<const std::vector<std::int32_t>> inputs_;
  const SharingLimits& limits_;
  std::vector<std::size_t> order_;   // inputs by their tokens
  std::vector<std::size_t> common_;  // tokens that one shares with the one before it in the order
  int depth_ = 0;                    // of nodes
};

}  // namespace

SharedBeginning FindSharedBeginnings(std::span<const std::vector<std::int32_t>> inputs,
                                     const SharingLimits& limits) {
  return TreeBuilder(inputs, limits).Build();
}

}  // namespace kvcache
