// Splits: the unit of attention's arithmetic, 256 positions aligned at absolute position 0, and the
// segments of a history that lie in them. Since partial results exist per split only, results do
// not depend on how the work is divided (docs/design/exactness.md).
//
//   positions   …|256 . . . . . . . . . . . . . . . . . . 511|…
//   segments        [260 … 300) in cells 68…   [310 … 512) in cells 1040…
//   a row sees            [290                … 400)
//
// Thread safety: values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kvcache/kv.h"
#include "kvcache/visibility.h"

namespace kvcache::cpu {

inline constexpr int kSplitPositions = 256;
// Floats between rows of scores. The tail absorbs what whole tiles write past the end. An odd
// number of cache lines, so that rows fall into different cache sets.
inline constexpr int kScoreStride = kSplitPositions + kCellTile;

// Positions [begin, end) relative to the split's first, in cells from `cell`.
struct Segment {
  int begin = 0;
  int end = 0;
  std::int32_t cell = 0;
};

// Positions [begin, end) relative to the split's first; empty if end <= begin.
struct RowRange {
  int begin = 0;
  int end = 0;
  bool empty() const { return end <= begin; }
};

// The smallest range that contains both.
constexpr PositionRange Union(PositionRange a, PositionRange b) {
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

// The bias of a row's scores in a split: values[clamp(zero + p, 0, last)] for position p, relative
// to the split's first.
struct RowBias {
  const float* values = nullptr;  // null: no bias
  std::int64_t zero = 0;
  std::int64_t last = 0;
};

// The first position of a split.
constexpr Position SplitBase(std::int32_t split) {
  return split * kSplitPositions;
}

// The part of `seen` inside `split`, shrunk so that both ends are retained positions.
inline RowRange RangeInSplit(PositionRange seen, std::int32_t split,
                             std::span<const Segment> segments) {
  const std::int64_t base = SplitBase(split);
  const int begin = static_cast<int>(std::clamp<std::int64_t>(seen.begin - base, 0, 256));
  const int end = static_cast<int>(std::clamp<std::int64_t>(seen.end - base, 0, 256));
  RowRange range{kSplitPositions, 0};
  for (const Segment& segment : segments) {
    const int first = std::max(begin, segment.begin);
    const int last = std::min(end, segment.end);
    if (first >= last) continue;
    range.begin = std::min(range.begin, first);
    range.end = last;
  }
  return range;
}

// The cell of the first retained position from `begin` on, and one past the cell of the last
// retained position before `end`. REQUIRES: there is such a position.
inline std::int64_t FirstCell(std::span<const HistoryRun> runs, std::int64_t begin) {
  const auto run = std::partition_point(runs.begin(), runs.end(), [&](const HistoryRun& r) {
    return std::int64_t{r.position} + r.length <= begin;
  });
  return run->cell + std::max<std::int64_t>(begin - run->position, 0);
}
inline std::int64_t EndCell(std::span<const HistoryRun> runs, std::int64_t end) {
  const auto run = std::prev(std::partition_point(
      runs.begin(), runs.end(), [&](const HistoryRun& r) { return r.position < end; }));
  return run->cell + std::min<std::int64_t>(end - run->position, run->length);
}

// Iterates over the splits that hold retained positions of `seen`, in ascending order.
//
//   for (SplitWalker walker(runs, seen); walker.Next();) { walker.split(), walker.segments() }
class SplitWalker {
 public:
  SplitWalker(std::span<const HistoryRun> runs, PositionRange seen) : runs_(runs), seen_(seen) {
    run_ = std::partition_point(runs.begin(), runs.end(),
                                [&](const HistoryRun& run) {
                                  return std::int64_t{run.position} + run.length <= seen.begin;
                                }) -
           runs.begin();
    next_ = seen.begin;
  }

  bool Next() {
    count_ = 0;
    if (!SkipToKept()) return false;
    split_ = static_cast<std::int32_t>(next_ / kSplitPositions);
    const std::int64_t split_end = std::int64_t{SplitBase(split_)} + kSplitPositions;
    const std::int64_t end = std::min<std::int64_t>(split_end, seen_.end);
    for (; run_ < Runs(); ++run_) {
      const HistoryRun& run = runs_[static_cast<std::size_t>(run_)];
      const std::int64_t run_end = std::int64_t{run.position} + run.length;
      const std::int64_t first = std::max<std::int64_t>(run.position, next_);
      const std::int64_t last = std::min(run_end, end);
      if (first >= end) break;
      if (first < last) Append(first, last, run);
      if (run_end > split_end) break;
    }
    next_ = split_end;
    return true;
  }

  std::int32_t split() const { return split_; }
  std::span<const Segment> segments() const { return {segments_.data(), count_}; }

 private:
  std::int64_t Runs() const { return static_cast<std::int64_t>(runs_.size()); }

  // Advances next_ to the first retained position at or after it; false if seen_ has none.
  bool SkipToKept() {
    for (; run_ < Runs(); ++run_) {
      const HistoryRun& run = runs_[static_cast<std::size_t>(run_)];
      if (std::int64_t{run.position} + run.length <= next_) continue;
      next_ = std::max<std::int64_t>(next_, run.position);
      return next_ < seen_.end;
    }
    return false;
  }

  void Append(std::int64_t first, std::int64_t last, const HistoryRun& run) {
    const std::int64_t base = SplitBase(split_);
    segments_[count_++] = {static_cast<int>(first - base), static_cast<int>(last - base),
                           static_cast<std::int32_t>(run.cell + (first - run.position))};
  }

  std::span<const HistoryRun> runs_;
  PositionRange seen_;
  std::int64_t run_ = 0;
  std::int64_t next_ = 0;
  std::int32_t split_ = 0;
  std::size_t count_ = 0;
  std::array<Segment, kSplitPositions> segments_;
};

}  // namespace kvcache::cpu
