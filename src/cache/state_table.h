// Which cell holds which sequence's recurrent state, and where one can go back to: the metadata
// of recurrent states, without their bytes.
//
//   sequence   live: cell 5 after 40 tokens     before the last pass: cell 2 after 39
//              checkpoints: cell 9 after 17, cell 4 after 30
//
// A cell is written once, by the pass that takes it, and then only held: by the sequence, by its
// forks, by checkpoints, each one owner of it. Sharing is thus counting, and nothing is copied.
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/ref_counted_cells.h"
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
  struct Options {
    int sequences = 0;
    int pass_sequences = 0;  // most in one pass
    int max_states = 0;      // most that sequences have apart
    CheckpointOptions checkpoints;
  };

  // Cells that can never run out: for states, for those before the last pass, for checkpoints,
  // for a pass, and the zeros.
  static std::int64_t CellsFor(const Options& options);

  // May throw std::bad_alloc.
  void Reset(const Options& options);

  const RefCountedCells& cells() const { return cells_; }
  // The sequence's state; not known after a fork at an earlier token.
  const StatePoint& live(SequenceId id) const { return of(id).live; }
  const StatePoint& before(SequenceId id) const { return of(id).before; }
  std::span<const StatePoint> checkpoints(SequenceId id) const { return of(id).checkpoints; }

  // How many states there would be if these sequences each had one of their own. O(sequences).
  std::int32_t CountStates(std::span<const SequenceId> sequences);

  // A pass: Take gives each of its sequences a cell to write; then either Commit or Drop.
  std::int32_t Take(SequenceId id, std::int32_t after);
  void Commit(SequenceId id, std::int32_t cell, Position tokens);
  void Drop(std::int32_t cell) { cells_.Release(cell); }

  // dst's points become src's up to `length` tokens. REQUIRES: src != dst.
  void Share(SequenceId src, SequenceId dst, Position length);
  void Clear(SequenceId id);

  // The highest token count at or below `target` that has a state; 0: the beginning.
  Position Newest(SequenceId id, Position target) const;
  // Makes the point at `tokens` the state, and drops what is later. REQUIRES: there is one.
  void GoBack(SequenceId id, Position tokens);
  // Tokens [begin, end) are gone from the middle: later points move down, those inside go.
  void RemoveMiddle(SequenceId id, Position begin, Position end);

 private:
  struct Points {
    StatePoint live;
    StatePoint before;
    std::vector<StatePoint> checkpoints;  // ascending
  };

  const Points& of(SequenceId id) const { return points_[Index(id)]; }
  Points& of(SequenceId id) { return points_[Index(id)]; }
  void Share(const StatePoint& point) { cells_.Share(point.cell); }
  void Forget(StatePoint& point);
  void ForgetAll(Points& points);
  // The live state becomes `point`, whose share of the cell it takes over.
  void SetLive(Points& points, const StatePoint& point);
  void CountUse(const StatePoint& point, std::int32_t by);
  void AddCheckpoint(Points& points);

  Options options_;
  RefCountedCells cells_;
  std::vector<Points> points_;           // [sequences]
  std::vector<std::int32_t> live_uses_;  // [cells]: sequences whose live state it is
  std::int32_t live_states_ = 0;         // cells with live uses, the zeros aside
};

}  // namespace kvcache
