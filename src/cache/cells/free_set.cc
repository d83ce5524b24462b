#include "cache/cells/free_set.h"

#include <bit>
#include <cassert>

namespace kvcache {

void FreeSet::Reset(std::int32_t size) {
  words_.clear();
  levels_ = 0;
  std::int64_t bits = size;
  do {  // each level has a bit per word of the level below; the top has one word
    const std::int64_t words = (bits + 63) / 64;
    begin_[levels_ + 1] = begin_[levels_] + words;
    words_.resize(begin_[levels_ + 1], ~std::uint64_t{0});
    if (bits % 64 != 0) words_.back() = (std::uint64_t{1} << (bits % 64)) - 1;
    ++levels_;
    bits = words;
  } while (bits > 1);
  count_ = size;
}

void FreeSet::Insert(std::int32_t cell) {
  assert(!Contains(cell));
  ++count_;
  std::int64_t index = cell;
  for (int level = 0; level < levels_; ++level, index >>= 6) {
    std::uint64_t& word = words_[begin_[level] + (index >> 6)];
    const bool was_empty = word == 0;
    word |= std::uint64_t{1} << (index & 63);
    if (!was_empty) return;
  }
}

void FreeSet::Erase(std::int32_t cell) {
  assert(Contains(cell));
  --count_;
  std::int64_t index = cell;
  for (int level = 0; level < levels_; ++level, index >>= 6) {
    std::uint64_t& word = words_[begin_[level] + (index >> 6)];
    word &= ~(std::uint64_t{1} << (index & 63));
    if (word != 0) return;
  }
}

std::int32_t FreeSet::NextFrom(std::int32_t from) const {
  std::int64_t index = from;
  for (int level = 0; level < levels_; ++level) {  // go up until a word has a later member
    if ((index >> 6) >= WordsOf(level)) return kNone;
    const std::uint64_t bits = Word(level, index >> 6) & (~std::uint64_t{0} << (index & 63));
    if (bits == 0) {
      index = (index >> 6) + 1;
      continue;
    }
    index = (index >> 6 << 6) + std::countr_zero(bits);
    while (level-- > 0) index = (index << 6) + std::countr_zero(Word(level, index));  // then down
    return static_cast<std::int32_t>(index);
  }
  return kNone;
}

}  // namespace kvcache
