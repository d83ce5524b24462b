#include "backend/cuda/kv/hadamard.h"

#include <bit>
#include <string>

namespace kvcache::cuda {

float HadamardFactor(std::int64_t size) {
  constexpr float kInverseRootOfTwo = 0x1.6a09e6p-1f;
  const int bits = std::countr_zero(static_cast<std::uint64_t>(size));
  const float whole = 1.0f / static_cast<float>(std::int64_t{1} << bits / 2);
  return bits % 2 == 0 ? whole : whole * kInverseRootOfTwo;
}

Result<std::size_t> HadamardRowsBytes(const Device& device, std::int64_t k_dim, int warps) {
  const std::size_t bytes = static_cast<std::size_t>(k_dim * warps) * sizeof(float);
  const std::size_t limit = device.info().shared_bytes;
  if (bytes <= limit) return bytes;
  return Status(StatusCode::kUnsupported, "keys of a block type with " + std::to_string(k_dim) +
                                              " values need " + std::to_string(bytes) +
                                              " bytes of shared memory; the device has " +
                                              std::to_string(limit));
}

}  // namespace kvcache::cuda
