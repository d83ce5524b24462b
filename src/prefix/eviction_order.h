// Finds the node whose state is worth least.
//
// Nodes are listed by class, and within a class by the time of their last use. The nodes of a class
// whose age is in the same bucket are worth the same, so only the oldest node of each class and bucket
// is looked at: the cost depends on the number of classes, not of nodes.
//
// Thread safety: that of the PrefixCache that owns it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "prefix/prefix_node.h"
#include "prefix/reuse_history.h"
#include "prefix/use_class.h"

namespace kvcache {

class EvictionOrder {
 public:
  // `leaf_share` and `inner_share` are what a token of worth is multiplied with: the part of what is
  // freed that is tokens, for a leaf, and what a state inside an edge saves of them.
  EvictionOrder(double leaf_share, double inner_share) : shares_{leaf_share, inner_share} {}

  // Lists the node if it may go, at the place of its class and use, and takes it out otherwise. Call it
  // after a change of what the place depends on, and before the next Least. Allocates nothing.
  void Update(PrefixNode& node, bool may_go);

  // Returns the node that goes first, or null if none is listed.
  PrefixNode* Least(const ReuseHistory& history) const;

 private:
  // What goes first, whatever it is worth; the others; what goes last.
  enum Band : std::uint8_t { kFirst, kByWorth, kLast, kBands };
  static std::size_t IndexOf(const PrefixNode& node);

  std::array<double, 2> shares_;
  // By band, leaf or inner node, and class.
  std::array<EvictionList, std::size_t{kBands} * 2 * kUseClasses> lists_;
};

}  // namespace kvcache
