// The free cells of a table, and the blocks of cells whose memory was written.
//
//   cells    . . a a . . . .  |  . . . .         free: no sequence and no hold has it
//   blocks   written          |  never written   since DropFreeBlocks last dropped them
//
// Thread safety: none. Only Reset and SetBlock allocate.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/cells/free_set.h"
#include "kvcache/kv.h"

namespace kvcache {

class FreeCells {
 public:
  struct Options {
    std::int32_t cells = 0;
    bool tracks_blocks = false;
    bool tracks_words = false;  // for FirstFreeWord
  };
  // Makes all cells free. May throw std::bad_alloc.
  void Reset(const Options& options);

  std::int32_t cells() const { return cells_; }
  std::int32_t count() const { return free_.count(); }
  bool Contains(std::int32_t cell) const { return free_.Contains(cell); }
  void Prefetch(std::int32_t cell) const { free_.Prefetch(cell); }
  // Returns the first free cell at or after `from`, or FreeSet::kNone.
  std::int32_t NextFrom(std::int32_t from) const { return free_.NextFrom(from); }
  bool tracks_words() const { return tracks_words_; }
  // Returns the first of 64 aligned cells that are all free, or FreeSet::kNone. REQUIRES: tracks_words().
  std::int32_t FirstFreeWord() const;

  // Takes a free cell, and puts it back.
  void Use(std::int32_t cell) {
    if (touched_.empty()) return free_.Erase(cell);
    UseTracked(cell);
  }
  void PutBack(std::int32_t cell) {
    if (touched_.empty()) return free_.Insert(cell);
    PutBackTracked(cell);
  }

  // Sets the size of a block, a multiple of 64. May throw std::bad_alloc.
  void SetBlock(std::int64_t cells);
  std::int64_t block() const { return block_; }
  std::int64_t touched_blocks() const { return touched_count_; }
  std::int64_t blocks() const { return static_cast<std::int64_t>(touched_.size()); }
  // Calls release(CellRun) for each run of blocks without a cell in use, and drops them if it returns
  // true.
  void DropFreeBlocks(const std::function<bool(const CellRun&)>& release);
  // Puts cells back that were used in this order, and drops the blocks that they touched first.
  // `touched`: one cell of each.
  void TakeBack(std::span<const std::int32_t> used, std::span<const std::int32_t> touched);

 private:
  // With tracks_blocks.
  void UseTracked(std::int32_t cell);
  void PutBackTracked(std::int32_t cell);
  bool HasFullWord(std::int32_t cell) const;
  // Returns whether the block was claimed and has no cell in use now.
  bool IsFreeBlock(std::int64_t block) const;

  std::int32_t cells_ = 0;
  FreeSet free_;
  FreeSet words_;  // of 64 cells, all of them free; with tracks_words only
  bool tracks_words_ = false;
  std::int64_t block_ = 64;
  std::vector<std::uint8_t> touched_;  // [blocks]
  std::int64_t touched_count_ = 0;
};

}  // namespace kvcache
