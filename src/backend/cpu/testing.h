// Helpers for the tests of this folder: reproducible values, weights of all types, targets.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_target.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/types.h"
#include "tensor/float_conversion.h"
#include "tensor/quantize.h"

namespace kvcache::cpu::testing {

// All types of weights.
inline constexpr DType kWeightTypes[] = {
    DType::kF32,   DType::kF16,    DType::kBF16,    DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0,
    DType::kQ5_1,  DType::kQ8_0,   DType::kQ4_K,    DType::kQ5_K,   DType::kQ6_K,  DType::kMXFP4,
    DType::kQ2_K,  DType::kQ3_K,   DType::kIQ4_NL,  DType::kIQ4_XS, DType::kIQ3_S, DType::kIQ3_XXS,
    DType::kIQ2_S, DType::kIQ2_XS, DType::kIQ2_XXS, DType::kIQ1_S,  DType::kIQ1_M, DType::kTQ1_0,
    DType::kTQ2_0, DType::kNVFP4};

// Values of the magnitude of N(0, 1), the same in every run.
inline std::vector<float> RandomValues(std::int64_t count, std::uint32_t seed) {
  std::minstd_rand random(seed + 1);
  std::uniform_real_distribution<float> uniform(-1.7f, 1.7f);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

// Where a block's factor d is.
inline std::size_t FactorAt(DType dtype) {
  switch (dtype) {
    case DType::kQ6_K: return 208;
    case DType::kQ2_K: return 80;
    case DType::kQ3_K: return 108;
    case DType::kTQ1_0: return 52;
    case DType::kTQ2_0: return 64;
    default: return 0;
  }
}

// IQ1_M has four bits of d on top of each of four numbers.
inline void SpreadFactor(std::uint16_t factor, std::byte* block) {
  for (std::size_t i = 0; i < 4; ++i) {
    std::byte& top = block[48 + 2 * i + 1];
    top = static_cast<std::byte>((static_cast<unsigned>(top) & 15u) | (factor >> 4 * i & 15u) << 4);
  }
}

// Sets the factors of random blocks to a plausible size and, in super-blocks, a random sign.
inline void SetFactors(DType dtype, std::vector<std::byte>& bytes, std::minstd_rand& random) {
  const auto block_bytes = static_cast<std::size_t>(InfoOf(dtype).block_bytes);
  const bool two = dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K ||
                   dtype == DType::kQ5_K || dtype == DType::kQ2_K;
  if (dtype == DType::kNVFP4) return;  // every scale is a number
  if (dtype == DType::kMXFP4) {
    for (std::size_t block = 0; block < bytes.size(); block += block_bytes) {
      bytes[block] = static_cast<std::byte>(110 + random() % 10);
    }
    return;
  }
  const std::size_t first = FactorAt(dtype);
  for (std::size_t block = 0; block < bytes.size(); block += block_bytes) {
    for (std::size_t i = 0; i < (two ? 2 : 1); ++i) {
      const float size = static_cast<float>(1 + random() % 1000) * 1e-5f;
      const bool negative = InfoOf(dtype).block_size == 256 && random() % 4 == 0;
      const std::uint16_t factor = F32ToF16(negative ? -size : size);
      if (dtype == DType::kIQ1_M) {
        SpreadFactor(factor, bytes.data() + block);
      } else {
        std::memcpy(bytes.data() + block + first + 2 * i, &factor, 2);
      }
    }
  }
}

// Random weights as a model file holds them. In block types every bit is random, except for the
// factors.
inline std::vector<std::byte> RandomWeights(DType dtype, std::int64_t count, std::uint32_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(BytesOf(dtype, count)));
  std::minstd_rand random(seed + 1);
  if (InfoOf(dtype).block_size > 1) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
    SetFactors(dtype, bytes, random);
    return bytes;
  }
  const std::vector<float> values = RandomValues(count, seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = dtype == DType::kF16 ? F32ToF16(values[i]) : F32ToBf16(values[i]);
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * 4, &values[i], 4);
    } else {
      std::memcpy(bytes.data() + i * 2, &half, 2);
    }
  }
  return bytes;
}

// The values of the bytes. REQUIRES: whole blocks.
inline std::vector<float> WeightValues(const std::vector<std::byte>& bytes, DType dtype) {
  const auto blocks = bytes.size() / static_cast<std::size_t>(InfoOf(dtype).block_bytes);
  std::vector<float> values(blocks * static_cast<std::size_t>(InfoOf(dtype).block_size));
  static_cast<void>(Dequantize(dtype, bytes, values).ok());
  return values;
}

// One step of a chain as `target` computes it: fused if it has fused multiply-add, else rounded
// twice.
struct MulAdd {
  explicit MulAdd(const std::string& target) : fused(target != "EMU128") {}
  float operator()(float a, float b, float c) const {
    return fused ? std::fma(a, b, c) : a * b + c;
  }
  bool fused;
};

// Forces a target for its lifetime.
class ForcedTarget {
 public:
  explicit ForcedTarget(const std::string& name) : ok_(UseCpuTarget(name).ok()) {}
  ~ForcedTarget() { static_cast<void>(UseCpuTarget("").ok()); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
  bool ok() const { return ok_; }

 private:
  bool ok_;
};

}  // namespace kvcache::cpu::testing
