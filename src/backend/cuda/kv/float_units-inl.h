// Values of f32, f16 and bf16 in memory, for kernels. NaNs keep the bits that the processors' instructions
// give (tensor/float_conversion.h); a device's conversions give others.
#pragma once

#include <cstdint>

#include "backend/cuda/language/kernel.h"
#include "kvcache/types.h"

namespace kvcache::cuda {

KVCACHE_DEVICE void WriteFloat(DType type, std::byte* at, float value) {
  const std::uint32_t bits = BitsOf(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  if (type == DType::kF32) {
    *reinterpret_cast<float*>(at) = value;
  } else if (type == DType::kF16) {
    const auto quiet =
        static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
    *reinterpret_cast<std::uint16_t*>(at) = nan ? quiet : ToHalf(value);
  } else {
    const auto quiet = static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    *reinterpret_cast<std::uint16_t*>(at) = nan ? quiet : ToBFloat(value);
  }
}

KVCACHE_DEVICE float ReadFloat(DType type, const std::byte* at) {
  if (type == DType::kF32) return *reinterpret_cast<const float*>(at);
  const std::uint16_t bits = *reinterpret_cast<const std::uint16_t*>(at);
  if (type == DType::kBF16) return FloatOf(std::uint32_t{bits} << 16);
  if ((bits & 0x7fffu) > 0x7c00u) {
    return FloatOf((bits & 0x8000u) << 16 | 0x7fc00000u | (bits & 0x3ffu) << 13);
  }
  return FromHalf(bits);
}

}  // namespace kvcache::cuda
