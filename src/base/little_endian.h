// Numbers as bytes, the least significant one first, on every machine: the order of all formats of files
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

// Sets all of `bytes`, at most eight.
inline void WriteLittleEndian(std::uint64_t number, std::span<std::byte> bytes) {
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(number);
    number >>= 8;
  }
}

// Appends the lowest `count` bytes, at most eight. May throw std::bad_alloc.
inline void AppendLittleEndian(std::uint64_t number, std::size_t count,
                               std::vector<std::byte>& bytes) {
  bytes.resize(bytes.size() + count);
  WriteLittleEndian(number, std::span(bytes).last(count));
}

// Returns the number of at most eight bytes.
inline std::uint64_t ReadLittleEndian(std::span<const std::byte> bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    number = number << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return number;
}

}  // namespace kvcache
