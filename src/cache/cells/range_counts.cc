#include "cache/cells/range_counts.h"

namespace kvcache {

void RangeCounts::Reset(std::int32_t cells) {
  std::int64_t size = 0;
  for (int level = 0; level < kLevels; ++level) {
    begin_[level] = size;
    size += ((std::int64_t{cells} - 1) >> (kShift * level)) + 1;
  }
  counts_.assign(size, 0);
  cells_ = cells;
  uses_blocks_ = false;
}

// Level by level: the cells or blocks before the first and after the last whole block of the next
// level, then those whole blocks as the range of the next level.
void RangeCounts::AddRange(std::int32_t begin, std::int32_t end, std::int32_t by) {
  constexpr std::int64_t kMask = (std::int64_t{1} << kShift) - 1;
  std::int64_t first = begin;
  std::int64_t last = end;
  for (int level = 0; first < last; ++level) {
    std::int32_t* const counts = counts_.data() + begin_[level];
    uses_blocks_ = uses_blocks_ || level > 0;
    const std::int64_t inner = (first + kMask) & ~kMask;
    const std::int64_t outer = last & ~kMask;
    if (level == kLevels - 1 || inner >= outer) {
      for (; first < last; ++first) counts[first] += by;
      return;
    }
    for (; first < inner; ++first) counts[first] += by;
    for (std::int64_t i = outer; i < last; ++i) counts[i] += by;
    first = inner >> kShift;
    last = outer >> kShift;
  }
}

}  // namespace kvcache
