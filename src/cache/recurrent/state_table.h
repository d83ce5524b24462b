// The metadata of recurrent states, without their bytes: the cell of each sequence's state, and the
// restore points.
//
//   sequence   live: cell 5 after 40 tokens     before the last pass: cell 2 after 39
//              checkpoints: cell 9 after 17, cell 4 after 30
//
// A cell is written once, by the pass that takes it. After that, sequences, forks and checkpoints
// each hold a reference to it. Sharing increments the reference count and copies nothing.
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cells/ref_counted_cells.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/types.h"

namespace kvcache {

// The state after `tokens` tokens.
struct StatePoint {
  static constexpr std::int32_t kNone = -1;

  std::int32_t cell = kNone;
  Position tokens = 0;
  bool known() const { return cell != kNone; }
};

class StateTable {
 public:
  // The restore points of a sequence.
  struct Points {
    StatePoint live;
    StatePoint before;
    std::vector<StatePoint> checkpoints;  // ascending
  };

  struct Options {
    int sequences = 0;
    int pass_sequences = 0;  // most sequences of one pass
    int max_states = 0;      // most distinct states of all sequences
    CheckpointOptions checkpoints;
    int snapshot_states = 0;  // further states that snapshots and captures keep
    int round_states = 0;     // further states that transactions keep
  };

  // Returns a number of cells that always suffices once snapshots keep none: for states, the states
  // before the last pass, checkpoints, one pass with its captures, a restore, and the zeros.
  static std::int64_t CellsFor(const Options& options);

  // May throw std::bad_alloc.
  void Reset(const Options& options);

  const RefCountedCells& cells() const { return cells_; }
  // Returns the free cells, without those set aside for transactions while there is none. It may be
  // negative right after the last one has ended.
  std::int32_t free_cells() const {
    return cells_.free_cells() - (saved_sequences_ > 0 ? 0 : cells_of_rounds_);
  }
  // The sequence's state; unknown after a fork at an earlier token.
  const StatePoint& live(SequenceId id) const { return of(id).live; }
  const StatePoint& before(SequenceId id) const { return of(id).before; }
  std::span<const StatePoint> checkpoints(SequenceId id) const { return of(id).checkpoints; }
  // Returns the restore point after `tokens` tokens; unknown if there is none.
  StatePoint Find(SequenceId id, Position tokens) const;

  // Returns the number of distinct states if each of these sequences had a private one.
  // O(sequences).
  std::int32_t CountStates(std::span<const SequenceId> sequences);

  // Take returns a cell for the next state of a sequence, the first free one after `after`. Then
  // either Commit makes it the sequence's state, and the state so far the one before the last pass,
  // or Drop releases it. REQUIRES (Commit): there is no state before the last pass; see DropBefore.
  std::int32_t Take(std::int32_t after) { return cells_.Take(after + 1); }
  void Commit(SequenceId id, std::int32_t cell, Position tokens);
  void Drop(std::int32_t cell) { cells_.Release(cell); }
  // Adds a reference to a cell that has one; Drop releases it.
  void Keep(std::int32_t cell) { cells_.Share(cell); }
  // Drops the state before the last pass.
  void DropBefore(SequenceId id);

  // Save keeps all restore points of the sequence as they are. Then Revert makes them those of the
  // sequence again. saved: those that Save found.
  void Save(SequenceId id);
  void Revert(SequenceId id);
  const Points& saved(SequenceId id) const { return saved_[Index(id)]; }

  // Replaces dst's restore points by src's up to `length` tokens. REQUIRES: src != dst.
  void Share(SequenceId src, SequenceId dst, Position length);
  // Resets the sequence to the zeros, without restore points.
  void Clear(SequenceId id);

  // Returns the highest token count at or below `target` that has a state; 0: the beginning.
  Position Newest(SequenceId id, Position target) const;
  // Makes the restore point at `tokens` the state and drops later ones. REQUIRES: it exists.
  void GoBack(SequenceId id, Position tokens);
  // Makes `point` the state and takes over its reference to the cell. Keeps the restore points up to
  // `kept` tokens that are before it.
  void Replace(SequenceId id, const StatePoint& point, Position kept);
  // Adjusts the restore points to the removal of tokens [begin, end): later ones move down, and
  // those inside the range are dropped.
  void RemoveMiddle(SequenceId id, Position begin, Position end);

 private:
  const Points& of(SequenceId id) const { return points_[Index(id)]; }
  Points& of(SequenceId id) { return points_[Index(id)]; }
  void Share(const StatePoint& point) { cells_.Share(point.cell); }
  void Forget(StatePoint& point);
  void ForgetAll(Points& points);
  // Makes `point` the live state and takes over its reference to the cell.
  void SetLive(Points& points, const StatePoint& point);
  void CountUse(const StatePoint& point, std::int32_t by);
  void AddCheckpoint(Points& points);

  Options options_;
  RefCountedCells cells_;
  std::vector<Points> points_;  // [sequences]
  std::vector<Points> saved_;   // [sequences]; unknown without a Save
  int saved_sequences_ = 0;
  std::int32_t cells_of_rounds_ = 0;     // set aside for transactions
  std::vector<std::int32_t> live_uses_;  // [cells]: sequences with this live state
  std::int32_t live_states_ = 0;         // cells with live uses, without the zeros
};

}  // namespace kvcache
