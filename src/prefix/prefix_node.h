// A node of the trie: the keys between its parent's end and its own, and what is known of them.
//
// Thread safety: that of the PrefixCache that owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "prefix/reuse_history.h"

namespace kvcache {

inline constexpr double kNeverPinned = -std::numeric_limits<double>::infinity();

struct PrefixNode;

// Orders nodes by the time of their last use; compares a node with a time as well.
struct UsedBefore {
  using is_transparent = void;
  bool operator()(const PrefixNode* a, const PrefixNode* b) const;
  bool operator()(double time, const PrefixNode* node) const;
  bool operator()(const PrefixNode* node, double time) const;
};

// An entry of EvictionOrder. It is allocated with its node, so listing a node cannot fail.
using EvictionList = std::set<PrefixNode*, UsedBefore>;
struct EvictionEntry {
  EvictionList::node_type unlisted{};  // holds the entry while it is in no list
  EvictionList::iterator place{};      // in the list
  std::size_t list = 0;

  bool listed() const { return unlisted.empty(); }
};

struct PrefixNode {
  PrefixNode* parent = nullptr;
  PrefixNode* first_child = nullptr;
  PrefixNode* next = nullptr;  // among the parent's children
  PrefixNode* previous = nullptr;
  std::vector<PrefixKey> keys{};  // [begin, end)
  Position end = 0;
  std::uint64_t hash = 0;                  // of the keys of [0, end) and the salt
  std::uint64_t number = 0;                // unique
  PrefixState state = PrefixState::kNone;  // covers [0, end)
  std::int32_t live = 0;                   // requests that go on from here
  bool restore_point = false;              // the caller's own
  Retention retention = Retention::kNormal;
  bool demoted = false;
  double pinned_until = kNeverPinned;
  UseGroup group = UseGroup::kNone;
  int of_class = 0;
  double used = 0.0;  // ReuseHistory::clock() at the last use
  EvictionEntry eviction{};

  Position begin() const { return end - static_cast<Position>(keys.size()); }
  bool leaf() const { return first_child == nullptr; }
  bool root() const { return parent == nullptr; }
  bool only_child() const { return previous == nullptr && next == nullptr; }
};

inline bool UsedBefore::operator()(const PrefixNode* a, const PrefixNode* b) const {
  return a->used != b->used ? a->used < b->used : a->number < b->number;
}
inline bool UsedBefore::operator()(double time, const PrefixNode* node) const {
  return time < node->used;
}
inline bool UsedBefore::operator()(const PrefixNode* node, double time) const {
  return node->used < time;
}

// Returns a node with its entry for the lists. Throws std::bad_alloc.
inline std::unique_ptr<PrefixNode> MakePrefixNode(std::uint64_t number) {
  auto node = std::make_unique<PrefixNode>();
  node->number = number;
  EvictionList list;
  node->eviction.unlisted = list.extract(list.insert(node.get()).first);
  return node;
}

}  // namespace kvcache
