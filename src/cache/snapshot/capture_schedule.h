// The lengths at which a cache captures its sequences, and the captures that were taken. All kinds of
// caches share it; each has its own way to take a capture.
//
//   lengths  16, 48, 64      begins  0, 16, 48      taken  [0, 16), [16, 48), none yet
//
// Thread safety: none. Schedule allocates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "kvcache/cache.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

inline constexpr const char* kNoMemoryForCaptures = "no memory for scheduled captures";

// The captures of one sequence.
template <class SnapshotType>
struct SequenceCaptures {
  std::vector<Position> lengths;  // empty: nothing is scheduled
  std::vector<std::unique_ptr<SnapshotType>>
      taken;             // [lengths]; null: not taken, or nothing to hold
  Position begin = 0;    // of the first one; kEachFromZero: of all
  std::size_t next = 0;  // the first length that no pass has reached

  Position BeginOf(std::size_t i) const {
    if (begin == kEachFromZero) return 0;
    return i == 0 ? begin : lengths[i - 1];
  }
};

template <class SnapshotType>
class CaptureSchedule {
 public:
  using Sequence = SequenceCaptures<SnapshotType>;

  // May throw std::bad_alloc.
  void Reset(int sequences) {
    Clear();
    of_.resize(static_cast<std::size_t>(sequences));
  }
  void Clear() {
    of_.clear();
    scheduled_ = 0;
  }

  // Returns whether any sequence has a schedule.
  bool any() const { return scheduled_ > 0; }
  Sequence& of(SequenceId id) { return of_[Index(id)]; }
  const Sequence& of(SequenceId id) const { return of_[Index(id)]; }

  // Errors: kOutOfMemory; nothing changes. REQUIRES: CheckCaptures returned Ok.
  Status Schedule(SequenceId id, Position begin, std::span<const Position> lengths) {
    if (lengths.empty()) return Status::Ok();
    Sequence& own = of(id);
    KVCACHE_RETURN_IF_ERROR(Guarded(kNoMemoryForCaptures, [&] {
      std::vector<Position> copy(lengths.begin(), lengths.end());
      own.taken.resize(lengths.size());
      own.lengths = std::move(copy);
    }));
    own.begin = begin;
    own.next = 0;
    ++scheduled_;
    return Status::Ok();
  }
  // Takes back the captures above the sequence's new length. Cancels all if their ranges are cut.
  void Truncate(SequenceId id, Position length) {
    Sequence& own = of(id);
    for (std::size_t i = own.lengths.size(); i > 0 && own.lengths[i - 1] > length; --i) {
      own.taken[i - 1].reset();
      own.next = std::min(own.next, i - 1);
    }
    if (own.begin > length) Cancel(id);
  }
  void Cancel(SequenceId id) {
    Sequence& own = of(id);
    if (!own.lengths.empty()) --scheduled_;
    own.lengths.clear();
    own.taken.clear();
    own.next = 0;
  }

 private:
  std::vector<Sequence> of_;  // [sequences]
  int scheduled_ = 0;         // sequences with a schedule
};

}  // namespace kvcache
