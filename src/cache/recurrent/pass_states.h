// The cells of the states that a pass reads and writes, and the addresses of its segments' states.
//
//   before   [sequences]   the states before the pass; its sequences hold them
//   after    [sequences]   those that it writes. The pass holds them until they become the sequences'
//   cuts     [captures]    those that it captures inside
//
// Thread safety: none. Only Reset and Resolve allocate.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/recurrent/recurrent_batch.h"
#include "cache/recurrent/state_store.h"
#include "cache/recurrent/state_table.h"
#include "kvcache/recurrent_cache.h"

namespace kvcache {

class PassStates {
 public:
  // May throw std::bad_alloc.
  void Reset(int sequences, int captures, int max_batch);

  void AddBefore(std::int32_t cell) { before_.push_back(cell); }
  // Adds a place in the memory that a reserving pass shows.
  void AddReserved() { after_.push_back(static_cast<std::int32_t>(after_.size())); }
  // Takes cells for the next states of `count` sequences, side by side where possible, and for `cuts`
  // captures.
  void Take(StateTable& states, std::size_t count, std::size_t cuts);
  // The sequences hold the states after the pass now.
  void GiveAfter() { holds_after_ = false; }
  // Drops what the pass still holds.
  void Drop(StateTable& states);
  // Replaces `cells` by those that Drop would drop.
  void ListHeld(std::vector<std::int32_t>& cells) const;

  std::span<const std::int32_t> before() const { return before_; }
  std::span<const std::int32_t> after() const { return after_; }
  std::span<const std::int32_t> cuts() const { return cuts_; }

  // How a pass shows its states.
  enum class Mode : std::uint8_t {
    kCompute,
    kReserve,  // the states after it are scratch memory; that of all sequences is allocated
  };
  // Returns the segments of the plan with the addresses of their states in the layer of the store. The spans
  // are valid until the next call for this kind. Errors: kOutOfMemory, and the backend's.
  Result<StateSegments> Resolve(StateStore& store, int layer, StateKind kind,
                                const SegmentPlan& plan, Mode mode);

 private:
  std::vector<std::int32_t> before_;
  std::vector<std::int32_t> after_;
  std::vector<std::int32_t> cuts_;
  bool holds_after_ = false;
  std::array<std::vector<StateSegment>, 2> segments_;  // results of Resolve, by kind
};

}  // namespace kvcache
