#include "backend/cpu/attention/history_sharing.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kvcache::cpu {
namespace {

// Walks along a history in steps of any length.
class Cursor {
 public:
  explicit Cursor(std::span<const HistoryRun> runs) : runs_(runs) {
    if (!runs.empty()) rest_ = runs.front();
  }

  bool AtEnd() const { return runs_.empty(); }
  // The rest of the current run. REQUIRES: !AtEnd().
  const HistoryRun& rest() const { return rest_; }

  // REQUIRES: 0 < length <= rest().length.
  void Skip(std::int32_t length) {
    rest_ = {rest_.position + length, rest_.cell + length, rest_.length - length};
    if (rest_.length > 0) return;
    runs_ = runs_.subspan(1);
    if (!runs_.empty()) rest_ = runs_.front();
  }

  // The next retained position.
  Position position() const { return AtEnd() ? kEndOfSequence : rest_.position; }
  // The cell of position `at` if that is the next position; otherwise a number above all cells.
  std::int32_t CellAt(Position at) const {
    return position() == at && !AtEnd() ? rest_.cell : std::numeric_limits<std::int32_t>::max();
  }

 private:
  std::span<const HistoryRun> runs_;
  HistoryRun rest_;
};

// Advances both cursors to the first difference and returns its position.
Position SkipShared(Cursor& a, Cursor& b) {
  while (!a.AtEnd() && !b.AtEnd()) {
    if (a.position() != b.position() || a.rest().cell != b.rest().cell) break;
    const std::int32_t length = std::min(a.rest().length, b.rest().length);
    a.Skip(length);
    b.Skip(length);
  }
  return std::min(a.position(), b.position());
}

}  // namespace

Position SharedUntil(std::span<const HistoryRun> a, std::span<const HistoryRun> b) {
  Cursor at_a(a);
  Cursor at_b(b);
  return SkipShared(at_a, at_b);
}

bool SharingOrder(std::span<const HistoryRun> a, std::span<const HistoryRun> b) {
  Cursor at_a(a);
  Cursor at_b(b);
  const Position end = SkipShared(at_a, at_b);
  return at_a.CellAt(end) < at_b.CellAt(end);
}

}  // namespace kvcache::cpu
