// The state of one sequence of a cache over positions [begin, end), detached from the sequence.
//
//   auto turn = cache->TakeSnapshot(sequence, 0, 120);          120 tokens; nothing is copied
//   … the sequence goes on, is truncated, or is dropped …
//   cache->Restore(other, turn->get(), 120);                    any sequence of the cache
//
// A snapshot is *lazy* at first: it shares the cells of its sequence and owns no bytes. The cache
// materialises it, that is, copies its cells to host memory, just before a pass needs them. A
// materialised snapshot restores with one copy.
//
// By kind:
//
//   full, chunked   any range; merges with the next range; splits anywhere. Restoring needs a
//                   sequence that holds all positions before `begin`.
//   window          the last `window` tokens before `end`. Restoring replaces the sequence. Merging
//                   keeps the later snapshot. Does not split.
//   recurrent       attention as above, and the state after `end` tokens; no other length can be
//                   restored. The sequence keeps its restore points after at most `begin` tokens;
//                   with a window, none. Merging keeps the later state. Does not split.
//   encoder         the output that belongs to a token of the range, whole. Merging keeps the later
//                   one. Splits anywhere: the output goes to the part with its token.
//   wrapper         one snapshot for each inner cache. All are restored, or none. Where one kind
//                   splits and another does not, merging the parts again may need an earlier base.
//
// Ownership: the caller's. A snapshot may outlive its cache, but it is worth nothing then. It can be
// restored only in the cache that made it; other caches import its bytes.
// Thread safety: that of its cache. Destroying a snapshot is a call to its cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kvcache/types.h"

namespace kvcache {

class Snapshot {
 public:
  virtual ~Snapshot() = default;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  Position begin() const { return begin_; }
  Position end() const { return end_; }
  // For implementations of caches.
  void SetRange(Position begin, Position end) {
    begin_ = begin;
    end_ = end;
  }

  // Returns the bytes of host memory that it keeps alive; 0 while it is lazy. Snapshots that were
  // split share memory, and each reports all of what it keeps. Cache::SnapshotBytes counts it once.
  virtual std::int64_t HeldBytes() const = 0;
  // Returns the cells that it shares with sequences or keeps for itself; 0 once it is materialised.
  // For an encoder or a recurrent state: entries or states.
  virtual std::int64_t HeldCells() const = 0;
  // Returns the snapshot of inner cache i of a wrapper, or that of a recurrent cache's attention (0);
  // null if there is none.
  virtual const Snapshot* Part(std::size_t /*i*/) const { return nullptr; }

 protected:
  Snapshot(Position begin, Position end) : begin_(begin), end_(end) {}

 private:
  Position begin_ = 0;
  Position end_ = 0;
};

// The two parts of a snapshot. A kind that cannot split returns null and the whole.
struct SnapshotParts {
  std::unique_ptr<Snapshot> first;
  std::unique_ptr<Snapshot> second;
};

// The bytes of freed snapshots that a cache keeps for the next ones (Cache::LimitSpareBytes).
inline constexpr std::int64_t kDefaultSpareBytes = std::int64_t{256} << 20;

// Is told the bytes of host memory that snapshots take (positive) and give back (negative).
using MaterializeHook = std::function<void(std::int64_t bytes)>;

}  // namespace kvcache
