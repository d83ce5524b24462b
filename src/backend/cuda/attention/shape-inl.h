// Loads, types and integers: small parts of all kernels here.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// Words that are loaded at once.
struct __attribute__((may_alias, aligned(8))) Words2 {
  std::uint32_t w[2];
};
struct __attribute__((may_alias, aligned(16))) Words4 {
  std::uint32_t w[4];
};
struct __attribute__((may_alias)) Word1 {
  std::uint32_t w;
};
struct __attribute__((may_alias)) Half1 {
  std::uint16_t w;
};

KVCACHE_DEVICE std::uint32_t LoadWord(const void* at) {
  return static_cast<const Word1*>(at)->w;
}
KVCACHE_DEVICE void LoadWords(const void* at, std::uint32_t (&w)[2]) {
  const Words2 words = *static_cast<const Words2*>(at);
  w[0] = words.w[0];
  w[1] = words.w[1];
}
KVCACHE_DEVICE void LoadWords(const void* at, std::uint32_t (&w)[4]) {
  const Words4 words = *static_cast<const Words4*>(at);
  KVCACHE_UNROLL
  for (int i = 0; i < 4; ++i) w[i] = words.w[i];
}
KVCACHE_DEVICE void LoadFloats(const float* at, float (&x)[4]) {
  std::uint32_t w[4];
  LoadWords(at, w);
  KVCACHE_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = FloatOf(w[i]);
}

// Element types of float keys and values.
struct StoredF32 {
  static constexpr int kBytes = 4;
  KVCACHE_DEVICE static float At(const void* at) { return FloatOf(LoadWord(at)); }
};
struct StoredF16 {
  static constexpr int kBytes = 2;
  KVCACHE_DEVICE static float At(const void* at) {
    return FromHalf(static_cast<const Half1*>(at)->w);
  }
  KVCACHE_DEVICE static float Low(std::uint32_t w) {
    return FromHalf(static_cast<std::uint16_t>(w));
  }
  KVCACHE_DEVICE static float High(std::uint32_t w) {
    return FromHalf(static_cast<std::uint16_t>(w >> 16));
  }
};
struct StoredBF16 {
  static constexpr int kBytes = 2;
  KVCACHE_DEVICE static float At(const void* at) {
    return FromBFloat(static_cast<const Half1*>(at)->w);
  }
  KVCACHE_DEVICE static float Low(std::uint32_t w) { return FloatOf(w << 16); }
  KVCACHE_DEVICE static float High(std::uint32_t w) { return FloatOf(w & 0xffff0000u); }
};

// Loads N neighbouring values. REQUIRES: `at` is aligned for all of them, up to 16 bytes.
template <class T, int N>
KVCACHE_DEVICE void LoadWide(const std::uint8_t* at, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = T::At(at);
  } else if constexpr (T::kBytes == 4) {
    static_assert(N == 2 || N % 4 == 0);
    constexpr int kWords = N == 2 ? 2 : 4;
    KVCACHE_UNROLL
    for (int i = 0; i < N; i += kWords) {
      std::uint32_t w[kWords];
      LoadWords(at + i * 4, w);
      KVCACHE_UNROLL
      for (int j = 0; j < kWords; ++j) x[i + j] = FloatOf(w[j]);
    }
  } else {
    constexpr int kWords = N / 2;
    std::uint32_t w[kWords];
    if constexpr (kWords == 1) {
      w[0] = LoadWord(at);
    } else {
      LoadWords(at, w);
    }
    KVCACHE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      x[2 * i] = T::Low(w[i]);
      x[2 * i + 1] = T::High(w[i]);
    }
  }
}

KVCACHE_DEVICE bool IsBlockType(KvType type) {
  return type == KvType::kQ8_0 || type == KvType::kQ4_0;
}
KVCACHE_DEVICE int ValueBytes(KvType type) {
  return type == KvType::kF32 ? 4 : 2;
}
// Bytes of the codes of sixteen cells' block of 32 values.
KVCACHE_DEVICE int CodeBytes(KvType type) {
  return type == KvType::kQ8_0 ? 512 : 256;
}
inline constexpr int kScaleBytes = 32;  // of the scales of sixteen cells' block

// (1.5 · 2^23 + i) as f32 has the bits kIntegerBits + i.
inline constexpr float kIntegers = 12582912.0f;
inline constexpr std::int32_t kIntegerBits = 0x4b400000;
inline constexpr float kLargestFloat = 0x1.fffffep+127f;
inline constexpr float kSmallestNormal = 0x1p-126f;

KVCACHE_DEVICE float MinusInfinity() {
  return FloatOf(0xff800000u);
}
KVCACHE_DEVICE float NotANumber() {
  return FloatOf(0x7fc00000u);
}

// Floats of magnitude up to `max` as integers of magnitude up to `levels` times a unit, as
// cpu/common/block_codes-inl.h defines. `largest` are the bits of max.
struct Unit {
  float unit;
  float inverse;
};
KVCACHE_DEVICE Unit UnitOf(std::int32_t largest, float levels) {
  const float unit = Div(FloatOf(static_cast<std::uint32_t>(largest)), levels);
  if (!(unit <= kLargestFloat)) return {NotANumber(), 0.0f};
  return {unit, unit >= kSmallestNormal ? Div(1.0f, unit) : 0.0f};
}

template <class T>
KVCACHE_DEVICE T Smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
KVCACHE_DEVICE T Larger(T a, T b) {
  return a > b ? a : b;
}

// The bits of a magnitude: they order as the magnitudes do, and NaN is the largest.
KVCACHE_DEVICE std::int32_t MagnitudeBits(float x) {
  return static_cast<std::int32_t>(BitsOf(x) & 0x7fffffffu);
}

}  // namespace kvcache::cuda
