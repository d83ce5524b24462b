// FNV-1a, 64 bits: a checksum that finds damage and tells things apart, not a defence against intent.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvcache {

class Fnv1a {
 public:
  void Add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      sum_ = (sum_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
    }
  }
  void Add(std::string_view text) { Add(std::as_bytes(std::span(text.data(), text.size()))); }
  // Adds the bytes of a number or another type without padding.
  template <class T>
  void AddValue(const T& value) {
    Add(std::as_bytes(std::span(&value, 1)));
  }
  std::uint64_t sum() const { return sum_; }

 private:
  std::uint64_t sum_ = 0xcbf29ce484222325;
};

}  // namespace kvcache
