// Finds what followed some keys before, in all prefixes of a salt.
//
// A table has the place behind each run of kLengths keys; of places with the same hash it keeps the newest.
// Nodes are divided, merged and removed all the time. So a place is the number of a node and a length,
// and a node that is gone leaves the number of one that has its keys, or those before them. What is found
// is compared key by key.
//
// Thread safety: that of the PrefixCache that owns it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "prefix/prefix_node.h"

namespace kvcache::prefix {

class Continuations {
 public:
  // The node is new, and so are its keys. Without memory they are not found. `root_salt`: of its root.
  void Added(PrefixNode& node, std::uint64_t root_salt);
  // `upper` has keys that `lower` had.
  void Split(PrefixNode& upper);
  // The node of this number is gone; the other one is its parent, or the child that has its keys.
  void Replaced(std::uint64_t number, const PrefixNode& other);

  // Appends to `keys` at most `max` keys that followed the last keys of `text`: the last 12 or 6, and at
  // least `min`. The time depends on `max` alone. Throws std::bad_alloc.
  void Find(std::span<const PrefixKey> text, std::size_t min, std::uint64_t salt, std::size_t max,
            std::vector<PrefixKey>& keys) const;

  std::int64_t bytes() const;

 private:
  static constexpr std::array<std::size_t, 2> kLengths = {12, 6};

  struct Place {
    std::uint64_t hash = 0;  // 0: none
    std::uint64_t salt = 0;
    std::uint64_t number = 0;  // of a node
    Position length = 0;       // keys from the root
  };
  struct Known {
    PrefixNode* node = nullptr;  // null: gone
    std::uint64_t other = 0;     // the number of the one to look at instead
  };

  static std::uint64_t Finish(std::uint64_t sum, std::size_t length, std::uint64_t salt);
  static constexpr std::size_t kSlots = 8;  // that a hash may be in

  // Returns a slot that the hash may be in. REQUIRES: there are places.
  Place& SlotOf(std::uint64_t hash, std::size_t step) {
    return places_[(hash + step) & (places_.size() - 1)];
  }
  const Place& SlotOf(std::uint64_t hash, std::size_t step) const {
    return places_[(hash + step) & (places_.size() - 1)];
  }
  void Insert(const Place& place);
  void Put(const Place& place);
  void Grow();
  void Clear();
  PrefixNode* NodeOf(std::uint64_t number) const;
  void FindLast(std::span<const PrefixKey> last, std::uint64_t salt, std::size_t max,
                std::vector<PrefixKey>& keys) const;

  std::vector<Place> places_;  // a power of two
  std::size_t used_ = 0;
  std::unordered_map<std::uint64_t, Known> nodes_;  // by number
  std::size_t max_nodes_ = std::size_t{1} << 18;    // before those that are gone are forgotten
};

}  // namespace kvcache::prefix
