// The states of the captures that a recurrent cache has scheduled. Its attention schedules the rest of
// them at the same lengths (captures.h).
//
//   sequence at 10, batch of positions 10 … 17, captures at 10, 14, 18
//
//   10   the state before the pass     taken when the pass begins
//   14   after 4 tokens: a cut         taken when the pass has written all states
//   18   the state after the pass      taken then, too; it shares the sequence's new cell
//
// Thread safety: none. Schedule and Plan allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/recurrent/recurrent_batch.h"
#include "cache/recurrent/recurrent_snapshot_pool.h"
#include "cache/snapshot/capture_schedule.h"

namespace kvcache {

class RecurrentCaptures {
 public:
  using OwnPtr = RecurrentSnapshotPool::OwnPtr;

  // May throw std::bad_alloc.
  void Reset(RecurrentSnapshotPool* pool, int sequences);
  void Clear();

  bool any() const { return schedule_.any(); }
  // Schedules captures. REQUIRES: Captures::Schedule accepted them. Errors: kOutOfMemory.
  Status Schedule(SequenceId id, Position begin, std::span<const Position> lengths) {
    return schedule_.Schedule(id, begin, lengths);
  }
  // Gives up the capture at this index of the schedule; null if there is none.
  OwnPtr Take(SequenceId id, std::size_t index);
  // Takes back the captures above the sequence's new length, or all of them.
  void Truncate(SequenceId id, Position length);
  void Cancel(SequenceId id);

  // Plans the captures of a sequence with the state `before` that a pass brings to the ends of these
  // positions, which ascend. `member` is as in StateCut. Errors: kOutOfMemory. Plans last until Begin
  // or DropPlanned.
  Status Plan(SequenceId id, std::int32_t member, const StatePoint& before,
              std::span<const Position> positions);
  // Returns the captures inside the planned pass, ascending.
  std::span<const StateCut> cuts() const { return planned_cuts_; }
  void DropPlanned();

  // Begins the planned pass: takes the captures of states before it.
  void Begin();
  // Takes the captures of the pass: its states are in these cells, [members] and [cuts].
  void Finish(std::span<const std::int32_t> after, std::span<const std::int32_t> cuts);
  // Forgets the captures of a pass that did not write all states.
  void Abandon() { pending_.clear(); }

 private:
  enum class Source : std::uint8_t { kBefore, kCut, kAfter };
  struct Planned {
    SequenceId id{};
    std::size_t index = 0;  // of the schedule
    OwnPtr snapshot{};      // without a state; null: there is no such state
    Source source = Source::kBefore;
    StatePoint state{};   // with a cell if kBefore
    std::int32_t at = 0;  // index of the cut or the member
  };

  void Fire(Planned& planned, std::int32_t cell);

  RecurrentSnapshotPool* pool_ = nullptr;
  CaptureSchedule<RecurrentSnapshot> schedule_;
  std::vector<Planned> planned_;
  std::vector<StateCut> planned_cuts_;
  std::vector<Planned> pending_;  // of the pass in progress
};

}  // namespace kvcache
