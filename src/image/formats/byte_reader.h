// Reads a file from its beginning. A read beyond the end gives zeros and is remembered.
//
// Thread safety: values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/little_endian.h"

namespace kvcache::image {

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }
  // Whether a read went beyond the end.
  bool ended() const { return ended_; }

  // Returns the next `count` bytes, or those that are left.
  std::span<const std::byte> Take(std::size_t count) {
    ended_ = ended_ || count > left();
    const auto taken = bytes_.subspan(position_, std::min(count, left()));
    position_ += taken.size();
    return taken;
  }
  void Skip(std::size_t count) { Take(count); }

  std::uint32_t U8() { return Number(1); }
  std::uint32_t U16() { return Number(2); }  // little-endian, as U32
  std::uint32_t U32() { return Number(4); }

 private:
  std::uint32_t Number(std::size_t count) {
    const auto taken = Take(count);
    return taken.size() == count ? static_cast<std::uint32_t>(ReadLittleEndian(taken)) : 0;
  }

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
  bool ended_ = false;
};

}  // namespace kvcache::image
