#include "cache/pass/history_mask.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/errors.h"
#include "cache/cells/run_list.h"

namespace kvcache {
namespace {

constexpr std::uint32_t kMinusInfinityF32 = 0xFF800000u;
constexpr std::uint16_t kMinusInfinityF16 = 0xFC00u;

std::span<const HistoryRun> HistoryOf(const Visibility& visibility, std::size_t i) {
  return visibility.histories[visibility.history_of_query[i]];
}

template <typename T>
void Fill(const Visibility& visibility, const CellRun& cells, std::int64_t rows, T hidden,
          T* mask) {
  std::fill_n(mask, rows * cells.length, hidden);
  for (std::size_t i = 0; i < visibility.positions.size(); ++i) {
    const auto [begin, end] = VisibleRange(visibility, i);
    T* row = mask + static_cast<std::int64_t>(i) * cells.length;
    for (const HistoryRun& run : HistoryOf(visibility, i)) {
      const HistoryRun seen = Clip(run, begin, end);
      if (seen.length > 0) std::fill_n(row + (seen.cell - cells.cell), seen.length, T{0});
    }
  }
}

}  // namespace

CellRun VisibleCells(const Visibility& visibility, std::int32_t padding) {
  std::int64_t first = std::numeric_limits<std::int32_t>::max();
  std::int64_t last = -1;
  for (std::size_t i = 0; i < visibility.positions.size(); ++i) {
    const auto [begin, end] = VisibleRange(visibility, i);
    for (const HistoryRun& run : HistoryOf(visibility, i)) {
      const HistoryRun seen = Clip(run, begin, end);
      if (seen.length == 0) continue;
      first = std::min<std::int64_t>(first, seen.cell);
      last = std::max<std::int64_t>(last, seen.cell + seen.length - 1);
    }
  }
  if (last < 0) return {};
  first = first / padding * padding;
  const std::int64_t end = (last / padding + 1) * padding;
  return {static_cast<std::int32_t>(first), static_cast<std::int32_t>(end - first)};
}

Status HistoryMask::Build(const Visibility& visibility, const CellRun& cells, std::int64_t rows,
                          DType type) {
  view_ = {};
  const std::int64_t bytes = BytesOf(type, rows * cells.length);
  try {
    values_.resize(bytes);
  } catch (const std::exception&) {  // also std::length_error: a mask can be quadratic
    return OutOfMemory("no memory for a mask of " + std::to_string(bytes) + " bytes");
  }
  view_ = TensorView::Dense(values_.data(), type, cells.length, rows);
  if (type == DType::kF16) {
    Fill(visibility, cells, rows, kMinusInfinityF16, view_.as<std::uint16_t>());
  } else {
    Fill(visibility, cells, rows, kMinusInfinityF32, view_.as<std::uint32_t>());
  }
  return Status::Ok();
}

}  // namespace kvcache
