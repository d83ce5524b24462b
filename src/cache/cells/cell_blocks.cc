// The blocks of cells whose memory was written: what is resident, and what more tokens would add.
#include <algorithm>
#include <new>

#include "cache/cells/cell_table.h"

namespace kvcache {

void CellTable::UseTracked(std::int32_t cell) const {
  if (lowest_first_ && cell / 64 < cells() / 64 && free_.IsFull(cell / 64)) {
    free_words_.Erase(cell / 64);
  }
  free_.Erase(cell);
  Touch(cell);
}

void CellTable::PutBackTracked(std::int32_t cell) const {
  free_.Insert(cell);
  if (lowest_first_ && cell / 64 < cells() / 64 && free_.IsFull(cell / 64)) {
    free_words_.Insert(cell / 64);
  }
}

bool CellTable::Touch(std::int32_t cell) const {
  std::uint8_t& block = touched_[static_cast<std::size_t>(cell / block_)];
  if (block != 0) return false;
  block = 1;
  ++touched_count_;
  return true;
}

void CellTable::SetBlock(std::int64_t cells) {
  std::vector<std::uint8_t> touched(static_cast<std::size_t>((this->cells() + cells - 1) / cells));
  for (std::int64_t i = 0; i < blocks() && i * block_ < this->cells(); ++i) {
    const std::int64_t last = std::min<std::int64_t>((i + 1) * block_, this->cells()) - 1;
    for (std::int64_t to = i * block_ / cells; touched_[i] != 0 && to <= last / cells; ++to) {
      touched[static_cast<std::size_t>(to)] = 1;
    }
  }
  touched_ = std::move(touched);
  touched_count_ = std::count(touched_.begin(), touched_.end(), std::uint8_t{1});
  block_ = cells;
}

bool CellTable::IsFreeBlock(std::int64_t block) const {
  if (touched_[static_cast<std::size_t>(block)] == 0) return false;
  const std::int64_t end = std::min<std::int64_t>((block + 1) * block_, cells());
  for (std::int64_t cell = block * block_; cell < end; ++cell) {
    if (!free_.Contains(static_cast<std::int32_t>(cell))) return false;
  }
  return true;
}

void CellTable::DropFreeBlocks(const std::function<bool(const CellRun&)>& release) {
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

// Claims the cells as a pass would, and takes all back. Without memory for that, each token may be
// in a block of its own.
std::int64_t CellTable::CountNewBlocks(std::span<const SequenceLength> more) const {
  if (touched_count_ == blocks()) return 0;
  std::vector<std::int32_t> used;
  std::vector<std::int32_t> added;
  std::size_t all = 0;
  for (const SequenceLength& sequence : more) all += static_cast<std::size_t>(sequence.length);
  try {
    used.reserve(all);
    added.reserve(all);
  } catch (const std::bad_alloc&) {
    return std::min(static_cast<std::int64_t>(all), blocks() - touched_count_);
  }
  for (const auto& [id, tokens] : more) {
    const Position length = history(id).length();
    std::int32_t previous = length > 0 ? history(id).CellOf(length - 1) : RunList::kNoCell;
    for (Position i = 0; i < tokens && free_.count() > 0; ++i) {
      previous = Place(id, length + i, previous);
      const std::int64_t before = touched_count_;
      Use(previous);
      used.push_back(previous);
      if (touched_count_ > before) added.push_back(previous);
    }
  }
  for (auto cell = used.rbegin(); cell != used.rend(); ++cell) PutBack(*cell);
  for (const std::int32_t cell : added) touched_[static_cast<std::size_t>(cell / block_)] = 0;
  touched_count_ -= static_cast<std::int64_t>(added.size());
  return static_cast<std::int64_t>(added.size());
}

}  // namespace kvcache
