// Single values of the block types, from the bytes of a model file. src/tensor decodes the same bytes on the
// host, and says where each type's bits are: quantize_blocks.cc, quantize_super_blocks.cc, coded_k.cc and
// its neighbours.
#pragma once

#include "backend/cuda/linear/block_format-inl.h"

namespace kvcache::cuda::linear {

// Bytes of a block, at any address.
struct BlockBytes {
  const std::byte* at;

  KVCACHE_DEVICE std::uint32_t Byte(int i) const {
    return LoadOnly(reinterpret_cast<const std::uint8_t*>(at) + i);
  }
  KVCACHE_DEVICE std::uint32_t Short(int i) const { return Byte(i) | Byte(i + 1) << 8; }
  KVCACHE_DEVICE std::uint32_t Word(int i) const { return Short(i) | Short(i + 2) << 16; }
  KVCACHE_DEVICE std::uint32_t Nibble(int from, int i) const {
    return Byte(from + i / 2) >> i % 2 * 4 & 15u;
  }
  KVCACHE_DEVICE float Half(int i) const { return FromHalf(static_cast<std::uint16_t>(Short(i))); }
};

// value = (d · scale) · meaning of the code, less a minimum where the type has one.
struct StoredValue {
  std::uint32_t code = 0;
  float scale = 0.0f;
  float minimum = 0.0f;
};

KVCACHE_DEVICE float FloatOfByte(std::uint32_t byte) {
  return static_cast<float>(static_cast<std::int8_t>(byte));
}

// The seven sign bits of eight values; the eighth makes their number even.
KVCACHE_DEVICE std::uint32_t WithParity(std::uint32_t seven) {
  std::uint32_t folded = seven ^ seven >> 4;
  folded ^= folded >> 2;
  folded ^= folded >> 1;
  return seven | (folded & 1u) << 7;
}

// ---- Blocks of 32

template <DType kType>
KVCACHE_DEVICE StoredValue BlockValue(const BlockBytes& block, int i) {
  constexpr bool kFive = kType == DType::kQ5_0 || kType == DType::kQ5_1;
  constexpr bool kHasMinimum = kType == DType::kQ4_1 || kType == DType::kQ5_1;
  StoredValue value;
  if constexpr (kType == DType::kMXFP4) {
    value.scale = PowerOf(block.Byte(0));
    value.code = block.Byte(1 + i % 16) >> i / 16 * 4 & 15u;
    return value;
  }
  value.scale = block.Half(0);
  if constexpr (kHasMinimum) value.minimum = -block.Half(2);
  constexpr int kBits = kHasMinimum ? 4 : 2;
  if constexpr (kType == DType::kQ8_0) {
    value.code = block.Byte(kBits + i);
    return value;
  }
  value.code = block.Byte(kBits + (kFive ? 4 : 0) + i % 16) >> i / 16 * 4 & 15u;
  if constexpr (kFive) value.code |= (block.Byte(kBits + i / 8) >> i % 8 & 1u) << 4;
  return value;
}

// ---- Super-blocks of 256

// Q4_K, Q5_K: 12 bytes hold scales and minima of six bits.
template <DType kType>
KVCACHE_DEVICE StoredValue MinimumValue(const BlockBytes& super, int i) {
  constexpr bool kFive = kType == DType::kQ5_K;
  const int j = i / 32;
  std::uint32_t scale = super.Byte(4 + j) & 63u;
  std::uint32_t minimum = super.Byte(8 + j) & 63u;
  if (j >= 4) {
    const std::uint32_t low = super.Byte(8 + j);
    scale = (low & 15u) | super.Byte(j) >> 6 << 4;
    minimum = low >> 4 | super.Byte(4 + j) >> 6 << 4;
  }
  StoredValue value;
  value.scale = Mul(super.Half(0), static_cast<float>(scale));
  value.minimum = Mul(super.Half(2), static_cast<float>(minimum));
  value.code = super.Byte((kFive ? 48 : 16) + j / 2 * 32 + i % 32) >> j % 2 * 4 & 15u;
  if constexpr (kFive) value.code |= (super.Byte(16 + i % 32) >> j & 1u) << 4;
  return value;
}

KVCACHE_DEVICE StoredValue SixBitValue(const BlockBytes& super, int i) {
  const int half = i / 128;
  const int j = i % 128;
  const std::uint32_t low = super.Byte(half * 64 + j % 64) >> j / 64 * 4 & 15u;
  const std::uint32_t high = super.Byte(128 + half * 32 + j % 32) >> j / 32 * 2 & 3u;
  StoredValue value;
  value.scale = Mul(super.Half(208), FloatOfByte(super.Byte(192 + i / 16)));
  value.code = low | high << 4;
  return value;
}

// Bits 2 n and 2 n + 1 of byte k of 32 are value k + 32 n.
KVCACHE_DEVICE std::uint32_t PairAt(const BlockBytes& super, int from, int i) {
  return super.Byte(from + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3u;
}

KVCACHE_DEVICE StoredValue Q2KValue(const BlockBytes& super, int i) {
  const std::uint32_t both = super.Byte(i / 16);
  StoredValue value;
  value.scale = Mul(super.Half(80), static_cast<float>(both & 15u));
  value.minimum = Mul(super.Half(82), static_cast<float>(both >> 4));
  value.code = PairAt(super, 16, i);
  return value;
}

// A code and a small number, whose product with d and the type's factor is the scale.
struct Coded {
  std::uint32_t code;
  std::uint32_t small = 1;
  float d;
};

KVCACHE_DEVICE Coded Q3KCode(const BlockBytes& super, int i) {
  const int s = i / 16;
  const std::uint32_t low = super.Byte(96 + s % 8) >> s / 8 * 4 & 15u;
  const std::uint32_t high = super.Byte(104 + s % 4) >> s / 4 * 2 & 3u;
  const std::uint32_t third = super.Byte(i % 32) >> i / 32 & 1u;
  return {PairAt(super, 32, i) | third << 2, (low | high << 4) - 32u, super.Half(108)};
}

KVCACHE_DEVICE Coded Iq4XsCode(const BlockBytes& super, int i) {
  const int b = i / 32;
  const std::uint32_t scale = super.Nibble(4, b) | (super.Short(2) >> 2 * b & 3u) << 4;
  return {super.Byte(8 + 16 * b + i % 16) >> i % 32 / 16 * 4 & 15u, scale - 32u, super.Half(0)};
}

// Five digits to the base of three in a byte.
KVCACHE_DEVICE std::uint32_t DigitOf(std::uint32_t byte, int n) {
  for (int k = 0; k < n; ++k) byte = byte * 3u & 255u;
  return byte * 3u >> 8;
}

KVCACHE_DEVICE Coded Tq1Code(const BlockBytes& super, int i) {
  const float d = super.Half(52);
  if (i < 160) return {DigitOf(super.Byte(i % 32), i / 32), 1, d};
  if (i < 240) return {DigitOf(super.Byte(32 + (i - 160) % 16), (i - 160) / 16), 1, d};
  return {DigitOf(super.Byte(48 + (i - 240) % 4), (i - 240) / 4), 1, d};
}

// ---- Codebooks: digits of two bits and signs (IQ2), of three (IQ3), of two and an eighth (IQ1)

KVCACHE_DEVICE std::uint32_t Iq2Code(std::uint32_t entry, std::uint32_t signs, int i) {
  return (entry >> 2 * i & 3u) | (signs >> i & 1u) << 2;
}
KVCACHE_DEVICE std::uint32_t Iq3Code(std::uint32_t entry, std::uint32_t signs, int i) {
  return (entry >> 3 * i & 7u) | (signs >> i & 1u) << 3;
}
KVCACHE_DEVICE std::uint32_t Iq1Code(std::uint32_t entry, std::uint32_t minus, int i) {
  return (entry >> 2 * i & 3u) << 1 | (minus ^ 1u);
}

template <DType kType>
KVCACHE_DEVICE Coded CodebookCode(const BlockBytes& super, int i, const std::uint16_t* codebook) {
  const auto entry = [&](std::uint32_t index) { return std::uint32_t{LoadOnly(codebook + index)}; };
  const int b = i / 32;
  const int eight = i / 8;
  const int four = i / 4;
  if constexpr (kType == DType::kIQ2_XXS) {
    const std::uint32_t rest = super.Word(2 + 8 * b + 4);
    return {Iq2Code(entry(super.Byte(2 + 8 * b + eight % 4)),
                    WithParity(rest >> 7 * (eight % 4) & 127u), i % 8),
            2 * (rest >> 28) + 1, super.Half(0)};
  } else if constexpr (kType == DType::kIQ2_XS) {
    const std::uint32_t both = super.Short(2 + 2 * eight);
    return {Iq2Code(entry(both & 511u), WithParity(both >> 9), i % 8),
            2 * super.Nibble(66, i / 16) + 1, super.Half(0)};
  } else if constexpr (kType == DType::kIQ2_S) {
    const std::uint32_t high = super.Byte(66 + eight / 4) >> eight % 4 * 2 & 3u;
    return {Iq2Code(entry(super.Byte(2 + eight) | high << 8), super.Byte(34 + eight), i % 8),
            2 * super.Nibble(74, i / 16) + 1, super.Half(0)};
  } else if constexpr (kType == DType::kIQ3_XXS) {
    const std::uint32_t rest = super.Word(66 + 4 * b);
    const int g = four % 8;
    return {Iq3Code(entry(super.Byte(2 + four)), WithParity(rest >> g / 2 * 7 & 127u) >> g % 2 * 4,
                    i % 4),
            2 * (rest >> 28) + 1, super.Half(0)};
  } else if constexpr (kType == DType::kIQ3_S) {
    const std::uint32_t high = super.Byte(66 + four / 8) >> four % 8 & 1u;
    return {Iq3Code(entry(super.Byte(2 + four) | high << 8), super.Nibble(74, four), i % 4),
            2 * super.Nibble(106, b) + 1, super.Half(0)};
  } else if constexpr (kType == DType::kIQ1_S) {
    const std::uint32_t rest = super.Short(34 + 2 * b);
    const std::uint32_t high = rest >> 3 * (eight % 4) & 7u;
    return {Iq1Code(entry(super.Byte(2 + eight) | high << 8), rest >> 15, i % 8),
            2 * (rest >> 12 & 7u) + 1, super.Half(0)};
  } else {
    std::uint32_t d = 0;
    KVCACHE_UNROLL
    for (int k = 0; k < 4; ++k) d |= super.Short(48 + 2 * k) >> 12 << 4 * k;
    const int s = i / 16;
    const std::uint32_t scale = super.Short(48 + s / 4 * 2) >> s % 4 * 3 & 7u;
    const std::uint32_t rest = super.Nibble(32, eight);
    return {Iq1Code(entry(super.Byte(eight) | (rest & 7u) << 8), rest >> 3, i % 8), 2 * scale + 1,
            FromHalf(static_cast<std::uint16_t>(d))};
  }
}

// ---- All block types

template <DType kType>
KVCACHE_DEVICE StoredValue CodedValue(const BlockBytes& block, int i,
                                      const std::uint16_t* codebook) {
  constexpr codec::CodeType kCode = codec::CodeTypeOf(kType);
  StoredValue value;
  if constexpr (kType == DType::kNVFP4) {
    const int s = i / 16;
    const std::uint32_t bits = block.Byte(s) & 0x7fu;
    value.code = block.Byte(4 + 8 * s + i % 8) >> i % 16 / 8 * 4 & 15u;
    const float small =
        bits == 0x7fu && block.Byte(s) == 0x7fu ? 0.0f : Mul(FloatOf(bits << 20), 0x1p120f);
    value.scale = Mul(kCode.factor, small);
    return value;
  }
  Coded coded{};
  if constexpr (kType == DType::kQ3_K) {
    coded = Q3KCode(block, i);
  } else if constexpr (kType == DType::kIQ4_NL) {
    coded = {block.Byte(2 + i % 16) >> i / 16 * 4 & 15u, 1, block.Half(0)};
  } else if constexpr (kType == DType::kIQ4_XS) {
    coded = Iq4XsCode(block, i);
  } else if constexpr (kType == DType::kTQ1_0) {
    coded = Tq1Code(block, i);
  } else if constexpr (kType == DType::kTQ2_0) {
    coded = {PairAt(block, 0, i), 1, block.Half(64)};
  } else {
    coded = CodebookCode<kType>(block, i, codebook);
  }
  value.code = coded.code;
  value.scale = Mul(Mul(coded.d, kCode.factor), FloatOfByte(coded.small));
  return value;
}

// Value i of a block.
template <DType kType>
KVCACHE_DEVICE float ValueOfBlock(const BlockBytes& block, int i, const std::uint16_t* codebook) {
  constexpr bool kHasMinimum = HasMinima(ChainOf(kType));
  StoredValue value;
  if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    value = MinimumValue<kType>(block, i);
  } else if constexpr (kType == DType::kQ6_K) {
    value = SixBitValue(block, i);
  } else if constexpr (kType == DType::kQ2_K) {
    value = Q2KValue(block, i);
  } else if constexpr (codec::CodeTypeOf(kType).bits > 0) {
    value = CodedValue<kType>(block, i, codebook);
  } else {
    value = BlockValue<kType>(block, i);
  }
  const float product = Mul(value.scale, FloatOfByte(ValuesOf<kType>(value.code) & 255u));
  return kHasMinimum ? Sub(product, value.minimum) : product;
}

}  // namespace kvcache::cuda::linear
