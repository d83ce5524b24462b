// What the tests of this folder share: reproducible values, weights in all types, targets.
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

namespace kvcache::cpu::testing {

// Values of N(0, 1)'s size, the same in every run.
inline std::vector<float> RandomValues(std::int64_t count, std::uint32_t seed) {
  std::minstd_rand random(seed + 1);
  std::uniform_real_distribution<float> uniform(-1.7f, 1.7f);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

// Random weights as a model file holds them, every int8 value among them for Q8_0.
inline std::vector<std::byte> RandomWeights(DType dtype, std::int64_t count, std::uint32_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(BytesOf(dtype, count)));
  std::minstd_rand random(seed + 1);
  if (dtype == DType::kQ8_0) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
    for (std::size_t block = 0; block < bytes.size(); block += 34) {
      const std::uint16_t scale = F32ToF16(static_cast<float>(1 + random() % 1000) * 1e-5f);
      std::memcpy(bytes.data() + block, &scale, 2);
    }
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

// Value i of plain or block-quantised bytes.
inline float WeightAt(const std::byte* bytes, DType dtype, std::int64_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bytes + i * 4, 4);
    return value;
  }
  std::uint16_t half;
  if (dtype == DType::kQ8_0) {
    const std::byte* const block = bytes + i / 32 * 34;
    std::memcpy(&half, block, 2);
    return F16ToF32(half) * static_cast<float>(static_cast<std::int8_t>(block[2 + i % 32]));
  }
  std::memcpy(&half, bytes + i * 2, 2);
  return dtype == DType::kF16 ? F16ToF32(half) : Bf16ToF32(half);
}

// A step of a chain as the target takes it: fused where it can, rounded twice where not.
struct MulAdd {
  explicit MulAdd(const std::string& target) : fused(target != "EMU128") {}
  float operator()(float a, float b, float c) const {
    return fused ? std::fma(a, b, c) : a * b + c;
  }
  bool fused;
};

// Forces a target while it lives.
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
