#include "cache/cells/run_list.h"

#include <algorithm>
#include <cassert>
#include <new>

namespace kvcache {

HistoryRun Clip(const HistoryRun& run, Position begin, Position end) {
  const Position from = std::max(run.position, begin);
  const Position to = std::min(RunList::End(run), end);
  if (from >= to) return {from, run.cell, 0};
  return {from, run.cell + (from - run.position), to - from};
}

std::size_t RunList::FirstEndingAfter(Position position) const {
  // Shortcut for the common case: appending, or reading the end.
  if (position >= length()) return runs_.size();
  const auto ends_before = [](const HistoryRun& run, Position p) { return End(run) <= p; };
  return std::lower_bound(runs_.begin(), runs_.end(), position, ends_before) - runs_.begin();
}

std::int32_t RunList::CellOf(Position position) const {
  if (!runs_.empty() && position >= runs_.back().position) {
    const HistoryRun& last = runs_.back();
    return position < End(last) ? last.cell + (position - last.position) : kNoCell;
  }
  const std::size_t i = FirstEndingAfter(position);
  if (i == runs_.size() || position < runs_[i].position) return kNoCell;
  return runs_[i].cell + (position - runs_[i].position);
}

bool RunList::Reserve(std::size_t more) {
  const std::size_t needed = runs_.size() + more;
  if (needed <= runs_.capacity()) return true;
  try {
    runs_.reserve(std::max(needed, 2 * runs_.capacity()));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void RunList::Append(const HistoryRun& run) {
  assert(run.position >= length());
  if (!runs_.empty() && Continues(runs_.back(), run)) {
    runs_.back().length += run.length;
    return;
  }
  assert(runs_.size() < runs_.capacity());
  runs_.push_back(run);
}

void RunList::Insert(Position position, std::int32_t cell) {
  const HistoryRun added{position, cell, 1};
  if (position >= length()) return Append(added);
  const auto next = runs_.begin() + FirstEndingAfter(position);
  assert(position < next->position);
  const bool joins_next = Continues(added, *next);
  if (next != runs_.begin() && Continues(*(next - 1), added)) {
    HistoryRun& previous = *(next - 1);
    previous.length += joins_next ? 1 + next->length : 1;
    if (joins_next) runs_.erase(next);
  } else if (joins_next) {
    *next = {position, cell, next->length + 1};
  } else {
    assert(runs_.size() < runs_.capacity());
    runs_.insert(next, added);
  }
}

void RunList::DropBefore(Position begin) {
  auto first = runs_.begin();
  while (first != runs_.end() && End(*first) <= begin) ++first;
  if (first != runs_.begin()) runs_.erase(runs_.begin(), first);
  if (!runs_.empty()) runs_.front() = Clip(runs_.front(), begin, kEndOfSequence);
}

void RunList::Truncate(Position length) {
  while (!runs_.empty() && runs_.back().position >= length) runs_.pop_back();
  if (!runs_.empty()) runs_.back() = Clip(runs_.back(), 0, length);
}

}  // namespace kvcache
