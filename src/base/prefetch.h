// Asks memory for a cache line that is needed soon, so that the processor does not wait for one after another.
//
// Thread safety: any.
#pragma once

#include <algorithm>
#include <cstddef>

namespace kvcache {

inline constexpr std::size_t kCacheLine = 64;

// Any address is allowed. The empty statement keeps compilers from dropping functions that do nothing else.
inline void Prefetch(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}
// The same, for a line that is written.
inline void PrefetchToWrite(const void* address) {
  __builtin_prefetch(address, 1);
  asm volatile("");
}

// Asks for the lines of `bytes` bytes, at most of kMaxPrefetch: more would displace each other.
inline constexpr std::size_t kMaxPrefetch = std::size_t{8} << 10;
inline void PrefetchRange(const void* begin, std::size_t bytes) {
  const char* const first = static_cast<const char*>(begin);
  bytes = std::min(bytes, kMaxPrefetch);
  for (std::size_t at = 0; at < bytes; at += kCacheLine) Prefetch(first + at);
  if (bytes > 0) Prefetch(first + bytes - 1);
}
// Asks for the lines of an object's first `bytes` bytes.
template <class T>
void PrefetchObject(const T& object, std::size_t bytes = sizeof(T)) {
  PrefetchRange(&object, bytes);
}

}  // namespace kvcache
