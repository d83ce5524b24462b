#include "base/keyed_hash.h"

#include <chrono>

namespace kvcache {

// The address of a static changes with each process where addresses are randomised, the clock
// everywhere.
std::uint64_t ProcessHashKey() {
  static const char anchor = 0;
  static const std::uint64_t key =
      MixHash(reinterpret_cast<std::uintptr_t>(&anchor) ^ kHashOdd1,
              static_cast<std::uint64_t>(
                  std::chrono::high_resolution_clock::now().time_since_epoch().count()) ^
                  kHashOdd2);
  return key;
}

}  // namespace kvcache
