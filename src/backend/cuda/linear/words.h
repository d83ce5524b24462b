// Words that lie together in memory, so that a kernel loads them at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::cuda::linear {

struct alignas(8) Words2 {
  std::uint32_t row[2];
};
struct alignas(16) Words4 {
  std::uint32_t at[4];
};

// Shared memory of any structure.
struct alignas(16) SharedBytes16 {
  std::byte at[16];
};

}  // namespace kvcache::cuda::linear
