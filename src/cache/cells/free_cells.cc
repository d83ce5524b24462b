#include "cache/cells/free_cells.h"

#include <algorithm>
#include <utility>

namespace kvcache {

void FreeCells::Reset(const Options& options) {
  cells_ = options.cells;
  free_.Reset(cells_);
  tracks_words_ = options.tracks_words;
  words_.Reset(tracks_words_ ? cells_ / 64 : 0);
  touched_.clear();
  touched_count_ = 0;
  block_ = tracks_words_ ? kCellTile : 64;
  if (options.tracks_blocks) SetBlock(block_);
}

std::int32_t FreeCells::FirstFreeWord() const {
  const std::int32_t word = words_.NextFrom(0);
  return word == FreeSet::kNone ? word : word * 64;
}

bool FreeCells::HasFullWord(std::int32_t cell) const {
  return tracks_words_ && cell / 64 < cells_ / 64 && free_.IsFull(cell / 64);
}

void FreeCells::UseTracked(std::int32_t cell) {
  if (HasFullWord(cell)) words_.Erase(cell / 64);
  free_.Erase(cell);
  std::uint8_t& block = touched_[static_cast<std::size_t>(cell / block_)];
  touched_count_ += block == 0 ? 1 : 0;
  block = 1;
}

void FreeCells::PutBackTracked(std::int32_t cell) {
  free_.Insert(cell);
  if (HasFullWord(cell)) words_.Insert(cell / 64);
}

void FreeCells::SetBlock(std::int64_t cells) {
  std::vector<std::uint8_t> touched(static_cast<std::size_t>((cells_ + cells - 1) / cells));
  for (std::int64_t i = 0; i < blocks() && i * block_ < cells_; ++i) {
    const std::int64_t last = std::min<std::int64_t>((i + 1) * block_, cells_) - 1;
    for (std::int64_t to = i * block_ / cells; touched_[i] != 0 && to <= last / cells; ++to) {
      touched[static_cast<std::size_t>(to)] = 1;
    }
  }
  touched_ = std::move(touched);
  touched_count_ = std::count(touched_.begin(), touched_.end(), std::uint8_t{1});
  block_ = cells;
}

bool FreeCells::IsFreeBlock(std::int64_t block) const {
  if (touched_[static_cast<std::size_t>(block)] == 0) return false;
  const std::int64_t end = std::min<std::int64_t>((block + 1) * block_, cells_);
  for (std::int64_t cell = block * block_; cell < end; ++cell) {
    if (!free_.Contains(static_cast<std::int32_t>(cell))) return false;
  }
  return true;
}

void FreeCells::DropFreeBlocks(const std::function<bool(const CellRun&)>& release) {
  for (std::int64_t begin = 0; begin < blocks(); ++begin) {
    std::int64_t end = begin;
    while (end < blocks() && IsFreeBlock(end)) ++end;
    if (end == begin) continue;
    const CellRun run{static_cast<std::int32_t>(begin * block_),
                      static_cast<std::int32_t>((end - begin) * block_)};
    if (release(run)) {
      std::fill(touched_.begin() + begin, touched_.begin() + end, std::uint8_t{0});
      touched_count_ -= end - begin;
    }
    begin = end;
  }
}

void FreeCells::TakeBack(std::span<const std::int32_t> used,
                         std::span<const std::int32_t> touched) {
  for (auto cell = used.rbegin(); cell != used.rend(); ++cell) PutBack(*cell);
  for (const std::int32_t cell : touched) touched_[static_cast<std::size_t>(cell / block_)] = 0;
  touched_count_ -= static_cast<std::int64_t>(touched.size());
}

}  // namespace kvcache
