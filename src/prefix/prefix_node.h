// A node of the trie: the keys between its parent's end and its own, and what is known of them.
//
// Thread safety: that of the PrefixCache that owns it.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "prefix/reuse_history.h"

namespace kvcache {

inline constexpr double kNeverPinned = -std::numeric_limits<double>::infinity();

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
  double used = 0.0;    // ReuseHistory::clock() at the last use
  bool listed = false;  // in EvictionOrder

  Position begin() const { return end - static_cast<Position>(keys.size()); }
  bool leaf() const { return first_child == nullptr; }
  bool root() const { return parent == nullptr; }
  bool only_child() const { return previous == nullptr && next == nullptr; }
};

}  // namespace kvcache
