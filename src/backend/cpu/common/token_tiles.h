// Cuts a batch of tokens into tiles of nearly equal size, each small enough for a kernel's
// registers.
#pragma once

#include <cstdint>

namespace kvcache::cpu {

class TokenTiles {
 public:
  // REQUIRES: tokens >= 0, max_tile >= 1.
  constexpr TokenTiles(std::int64_t tokens, std::int64_t max_tile)
      : tokens_(tokens), count_((tokens + max_tile - 1) / max_tile) {
    size_ = count_ > 0 ? (tokens + count_ - 1) / count_ : 1;
    full_ = tokens - count_ * (size_ - 1);
  }

  constexpr std::int64_t tokens() const { return tokens_; }
  constexpr std::int64_t count() const { return count_; }

  // Tile i holds tokens [Begin(i), Begin(i + 1)): the first ones size_, the rest one less.
  constexpr std::int64_t Begin(std::int64_t tile) const {
    return tile * (size_ - 1) + (tile < full_ ? tile : full_);
  }
  constexpr std::int64_t Size(std::int64_t tile) const { return size_ - (tile < full_ ? 0 : 1); }
  // REQUIRES: 0 <= token < tokens().
  constexpr std::int64_t TileOf(std::int64_t token) const {
    const std::int64_t in_full = full_ * size_;
    return token < in_full ? token / size_ : full_ + (token - in_full) / (size_ - 1);
  }

 private:
  std::int64_t tokens_;
  std::int64_t count_;
  std::int64_t size_ = 1;
  std::int64_t full_ = 0;
};

}  // namespace kvcache::cpu
