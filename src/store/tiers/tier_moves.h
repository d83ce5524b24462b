// Moves objects between the tiers of a tiered store, in threads of its own.
//
//   up     what a later tier gave is copied to every tier before the first one that has it
//   down   what a tier evicts is written to the next one, if no later tier has it; else it is dropped
//
// Nobody waits for it: what has no room in a queue is not moved, and an error of a tier is the end of one move.
//
// Thread safety: all calls from any thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvcache/store.h"
#include "store/tiers/write_behind.h"

namespace kvcache::store {

class TierMoves {
 public:
  // `tiers` must outlive it. Sets their eviction hooks.
  TierMoves(const std::vector<std::shared_ptr<Store>>& tiers, MoveObjects moves);
  // Moves what waits.
  ~TierMoves();
  TierMoves(const TierMoves&) = delete;
  TierMoves& operator=(const TierMoves&) = delete;

  // Copies the object to the earlier tiers later, if there is room for it.
  void CopyUp(const ObjectId& id, std::span<const std::byte> payload);
  // Forgets moves of the object. Returns when none is going on.
  void Cancel(const ObjectId& id);
  // Returns when nothing waits.
  void Flush();

 private:
  static constexpr std::int64_t kMaxWaitingBytes = std::int64_t{64} << 20;  // of each queue

  Status MoveUp(const ObjectId& id, std::span<const std::byte> payload);
  Status MoveDown(std::size_t from, const ObjectId& id, std::span<const std::byte> payload);
  static void Add(WriteBehind& queue, const ObjectId& id, std::span<const std::byte> payload);

  const std::vector<std::shared_ptr<Store>>& tiers_;
  std::vector<std::unique_ptr<WriteBehind>> down_;  // by the tier that evicts
  std::unique_ptr<WriteBehind> up_;                 // null: nothing is moved
};

}  // namespace kvcache::store
