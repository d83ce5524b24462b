// Hashing for tables whose keys come from files: keyed with numbers of the process, so that
// nobody can write a file whose keys all collide.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

namespace kvcache {

// Both halves of the 128-bit product, folded: every bit of either reaches all of the result.
inline std::uint64_t MixHash(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline constexpr std::uint64_t kHashOdd1 = 0x9E3779B97F4A7C15;
inline constexpr std::uint64_t kHashOdd2 = 0xD6E8FEB86659FD93;

// The same all through the process, another one in the next.
std::uint64_t ProcessHashKey();

}  // namespace kvcache
