// The slots of an open hash table: linear probing, at most half full.
//
//   slots     s0 -- s2 s3 --     a key is in the first slot from hash & (slots - 1) on that holds
//                                it; a free slot ends the search
//
// The owner hashes its keys, so that each table can use the cheapest hash for its keys.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache {

// Slot() is free. Slot has `bool IsFree() const`.
template <typename Slot>
class OpenHashTable {
 public:
  OpenHashTable() = default;

  // Makes a table with room for `count` keys.
  explicit OpenHashTable(std::size_t count)
      : slots_(std::bit_ceil(2 * count + 2)), mask_(slots_.size() - 1) {}

  // Returns the slot for which `matches` is true, or the free slot where its key belongs. `hash` is
  // the hash of the key. REQUIRES: the table was made with a count; at most that many slots are
  // taken.
  template <typename Matches>
  const Slot& Find(std::uint64_t hash, const Matches& matches) const {
    for (std::uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.IsFree() || matches(slot)) return slot;
    }
  }
  template <typename Matches>
  Slot& Find(std::uint64_t hash, const Matches& matches) {
    return const_cast<Slot&>(static_cast<const OpenHashTable&>(*this).Find(hash, matches));
  }

  // Returns all slots, free ones included.
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  std::vector<Slot> slots_;
  std::uint64_t mask_ = 0;
};

}  // namespace kvcache
