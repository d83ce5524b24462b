// A node of the trie: the keys between its parent's end and its own, and what is known of them.
//
// Thread safety: that of the PrefixCache that owns it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "prefix/eviction_policy.h"

namespace kvcache::prefix {

inline constexpr double kNeverPinned = -std::numeric_limits<double>::infinity();

struct PrefixNode {
  PrefixNode* parent = nullptr;
  PrefixNode* first_child = nullptr;
  PrefixNode* next = nullptr;  // among the parent's children
  PrefixNode* previous = nullptr;
  std::vector<PrefixKey> keys{};  // [begin, end)
  Position end = 0;
  std::uint64_t number = 0;                // unique
  PrefixState state = PrefixState::kNone;  // covers [0, end)
  std::int32_t live = 0;                   // requests that continue from here
  bool restore_point = false;              // the caller's own
  double pinned_until = kNeverPinned;
  std::uint64_t used = 0;  // the number of the last use: how many requests had ended
  std::unique_ptr<EvictionPolicy::Hook> hook{};  // null for roots

  Position begin() const { return end - static_cast<Position>(keys.size()); }
  bool leaf() const { return first_child == nullptr; }
  bool root() const { return parent == nullptr; }
  bool only_child() const { return previous == nullptr && next == nullptr; }
};

}  // namespace kvcache::prefix
