// The state of one sequence of a cache over positions [begin, end), detached from the sequence.
//
//   CacheSnapshots& snapshots = *cache->snapshots();
//   auto turn = snapshots.TakeSnapshot(sequence, 0, 120);       120 tokens; nothing is copied
//   … the sequence grows, is truncated, or is dropped …
//   snapshots.Restore(other, turn->get(), 120);                 any sequence of the cache
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
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcache/status.h"
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
  // split share memory, and each reports all of what it keeps. CacheSnapshots::SnapshotBytes counts it once.
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

// The bytes of freed snapshots that a cache keeps for the next ones (CacheSnapshots::LimitSpareBytes).
inline constexpr std::int64_t kDefaultSpareBytes = std::int64_t{256} << 20;

// Is told the bytes of host memory that snapshots take (positive) and give back (negative).
using MaterializeHook = std::function<void(std::int64_t bytes)>;

// See CacheSnapshots::ScheduleCaptures.
inline constexpr Position kEachFromZero = -1;

// A cache's calls for snapshots: Cache::snapshots().
class CacheSnapshots {
 public:
  virtual ~CacheSnapshots() = default;

  // ---- Taking

  // Returns the state of the sequence over [begin, end), or null if the range is empty and so is the
  // state. Copies nothing. The sequence does not change. Errors: kInvalidArgument for an unknown
  // sequence or a range that is reversed or ends past the sequence; kUnsupported if the cache no
  // longer has the state after `end` tokens (a window or a recurrent state that has advanced);
  // kOutOfMemory.
  virtual Result<std::unique_ptr<Snapshot>> TakeSnapshot(SequenceId sequence, Position begin,
                                                         Position end) = 0;

  // Schedules snapshots at these lengths of the sequence. Each is taken by the pass that reaches it,
  // also inside a batch: the caller need not cut a prefill. The first one begins at `begin`, the
  // length that the sequence has now; each other one begins at the length before it. With
  // kEachFromZero as `begin`, every one begins at position 0. A truncation,
  // or a transaction that takes tokens back, takes back those above the new length; they are scheduled
  // again. If the new length is below `begin`, it cancels all. So does any other change of the
  // sequence except by a pass, also if it fails. Errors that change nothing:
  // kInvalidArgument for an unknown sequence, for lengths that do not ascend from `begin`, for a
  // `begin` below the sequence's length, or if the last schedule was not taken; kOutOfMemory.
  virtual Status ScheduleCaptures(SequenceId sequence, Position begin,
                                  std::span<const Position> lengths) = 0;
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::initializer_list<Position> lengths) {
    return ScheduleCaptures(sequence, begin, std::span(lengths.begin(), lengths.size()));
  }
  // Returns the snapshots in the order of the schedule and clears it. Null: the length was not
  // reached, or the range is empty and so is the state.
  virtual Result<std::vector<std::unique_ptr<Snapshot>>> TakeCaptures(SequenceId sequence) = 0;
  // Clears the schedule and what was captured. Does nothing for an unknown sequence.
  virtual void CancelCaptures(SequenceId sequence) = 0;

  // ---- Restoring

  // Brings the sequence to `target` tokens. With a snapshot, positions from snapshot->begin() on are
  // the snapshot's (those of a window, all). Without one, the sequence goes back by itself. The
  // snapshot stays valid. Ends the pass. Errors that change nothing:
  //   kInvalidArgument  The sequence is unknown, `target` is negative or past the end, the
  //                     snapshot is another cache's, or a layer of it has another shape.
  //   kUnsupported      The target cannot be reached: tokens before the snapshot are missing, the
  //                     window is incomplete there, or there is no recurrent state.
  //   kCacheFull        There are too few free cells, and materialising other snapshots would not
  //                     free enough.
  //   kOutOfMemory      There is no memory for metadata or for materialising.
  // After an error of the backend the sequence is as before or, if its own cells had to be reused,
  // empty.
  virtual Status Restore(SequenceId sequence, const Snapshot* snapshot, Position target) = 0;
  // Returns the kInvalidArgument, kUnsupported and kCacheFull errors of Restore, or Ok.
  virtual Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                              Position target) const = 0;

  // ---- Ranges

  // Returns one snapshot [a, c) for `parent` [a, b) and `child` [b, c), and takes both. Copies
  // nothing. In a wrapper, the whole has nothing of a kind of which a `child` with tokens has
  // nothing. Errors that change nothing: kInvalidArgument if they are not neighbours or not of this
  // cache; kOutOfMemory.
  virtual Result<std::unique_ptr<Snapshot>> MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                           std::unique_ptr<Snapshot>& child) = 0;
  // Splits a snapshot [a, c) at `position` into [a, position) and [position, c), and takes it.
  // Copies nothing. A kind that cannot split returns null and the whole, which then also restores
  // at c only; in a wrapper, the first part has nothing of such a kind and cannot be restored past
  // its beginning. Errors that change nothing:
  // kInvalidArgument unless a < position < c and the snapshot is this cache's; kOutOfMemory.
  virtual Result<SnapshotParts> SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                              Position position) = 0;

  // ---- Bytes

  // Returns a text that names everything that the bytes of this cache's snapshots depend on: kinds,
  // windows, types, transformations, CausalOptions::keys_identity, and the shapes of the layers that
  // have memory (a reserving pass gives all layers theirs). Snapshots move only between caches with
  // equal texts of the first line; shapes are checked layer by layer. A wrapper's first line counts
  // its caches, and the texts of these follow. Errors: kInvalidArgument before Init.
  virtual Result<std::string> Fingerprint() const = 0;
  // Writes a snapshot to a caller's memory, ExportSize bytes, as docs/snapshot-format.md describes:
  // layer by layer, in order of position, independent of where the cells lie and of the processor.
  // Errors: kInvalidArgument for another cache's snapshot or memory of another size; kOutOfMemory;
  // the backend's.
  virtual Result<std::int64_t> ExportSize(const Snapshot& snapshot) const = 0;
  virtual Status Export(const Snapshot& snapshot, std::span<std::byte> bytes) = 0;
  // Makes a materialised snapshot of exported bytes, which are copied. Checks all of the bytes'
  // description, but not the keys and values. The caches' sizes may differ. A layer of this cache that
  // was never put takes its shape from the first snapshot that is restored. Errors: kCorrupt for bytes
  // that are not a whole snapshot; kInvalidArgument for one of a cache with another fingerprint, with
  // both texts; kOutOfMemory.
  virtual Result<std::unique_ptr<Snapshot>> Import(std::span<const std::byte> bytes) = 0;

  // ---- Host memory

  // Copies the cells of a lazy snapshot to host memory and gives them back; for tests and for
  // callers that need the cells. Errors: kOutOfMemory, and the backend's; nothing changes.
  virtual Status Materialize(Snapshot& snapshot) = 0;
  // Sets the function that is told of host memory taken and given back by snapshots. It may be
  // called from any call, and must not call the cache. Call this after Init; before, it does nothing.
  virtual void SetMaterializeHook(const MaterializeHook& hook) = 0;
  // Returns the bytes of host memory of all snapshots of this cache.
  virtual std::int64_t SnapshotBytes() const = 0;
  // Returns the bytes of host memory that the cache keeps for the next snapshots after it freed earlier
  // ones. SnapshotBytes and the hook do not count it. New memory costs more time than the copy into it.
  virtual std::int64_t SpareBytes() const = 0;
  // Sets the most bytes of spare memory, and gives what is above back to the system. Call it after
  // Init. Without this call the limit is kDefaultSpareBytes; with 0 nothing is kept. Caches inside a
  // wrapper or a recurrent cache have the limit each. Close frees the memory of snapshots that are
  // gone, and keeps none after it.
  virtual void LimitSpareBytes(std::int64_t max_bytes) = 0;
};

}  // namespace kvcache
