// Blocks of 32 values, each with an f16 scale d and, if the type's name ends in _1, an f16 minimum
// m. The bytes of a block, and its value i:
//
//   Q4_0   d, 16 × nibbles                 d · (q - 8)
//   Q4_1   d, m, 16 × nibbles              d · q + m
//   Q5_0   d, high (u32), 16 × nibbles     d · (q - 16)
//   Q5_1   d, m, high (u32), 16 × nibbles  d · q + m
//   Q8_0   d, 32 × int8                    d · q
//
// Byte i of the nibbles holds value i in its lower half and value i + 16 in its upper; bit i of
// `high` is the fifth bit of value i. Products are exact in f32: 11 bits times 5 or 8.
//
// Source: ggml's quantize_row_*_ref and dequantize_row_* (ggml-quants.c).
#include <algorithm>
#include <array>
#include <cmath>

#include "tensor/block_codec.h"
#include "tensor/float_conversion.h"

namespace kvcache::codec {
namespace {

constexpr int kBlock = 32;
constexpr int kHalf = kBlock / 2;

using Quants = std::array<std::uint8_t, kBlock>;

// Returns the value furthest from zero, the first of equal ones.
float Furthest(const float* values) {
  float furthest = 0.0f;
  for (int i = 0; i < kBlock; ++i) {
    if (std::fabs(values[i]) > std::fabs(furthest)) furthest = values[i];
  }
  return furthest;
}

// ---- Where the bits lie

void StoreNibbles(const Quants& q, std::byte* out) {
  for (std::size_t i = 0; i < kHalf; ++i) {
    out[i] = static_cast<std::byte>((q[i] & 15) | (q[i + kHalf] & 15) << 4);
  }
}

void StoreHighBits(const Quants& q, std::byte* out) {
  std::uint32_t high = 0;
  for (std::size_t i = 0; i < kBlock; ++i) high |= std::uint32_t{q[i] >> 4 & 1u} << i;
  Store(out, high);
}

Quants LoadNibbles(const std::byte* bytes) {
  Quants q;
  for (std::size_t i = 0; i < kHalf; ++i) {
    const auto both = static_cast<std::uint8_t>(bytes[i]);
    q[i] = both & 15;
    q[i + kHalf] = both >> 4;
  }
  return q;
}

void AddHighBits(std::uint32_t high, Quants& q) {
  for (std::size_t i = 0; i < kBlock; ++i) {
    q[i] = static_cast<std::uint8_t>(q[i] | (high >> i & 1u) << 4);
  }
}

// ---- Around zero: Q4_0, Q5_0. The furthest value becomes the lowest quant, so that the sign
// that needs it gets the larger range.

template <int kBits>
void EncodeAroundZero(const float* values, std::byte* out) {
  constexpr int kMiddle = 1 << (kBits - 1);
  const float d = Furthest(values) / static_cast<float>(-kMiddle);
  const float inverse = InverseOf(d);
  Quants q;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const auto shifted =
        static_cast<int>(values[i] * inverse + (static_cast<float>(kMiddle) + 0.5f));
    q[i] = static_cast<std::uint8_t>(std::min(2 * kMiddle - 1, shifted));
  }
  Store(out, F32ToF16(d));
  if constexpr (kBits == 5) StoreHighBits(q, out + 2);
  StoreNibbles(q, out + (kBits == 5 ? 6 : 2));
}

template <int kBits>
void DecodeAroundZero(const std::byte* bytes, float* values) {
  constexpr int kMiddle = 1 << (kBits - 1);
  const float d = F16ToF32(Load<std::uint16_t>(bytes));
  Quants q = LoadNibbles(bytes + (kBits == 5 ? 6 : 2));
  if constexpr (kBits == 5) AddHighBits(Load<std::uint32_t>(bytes + 2), q);
  for (std::size_t i = 0; i < kBlock; ++i) {
    values[i] = d * static_cast<float>(static_cast<int>(q[i]) - kMiddle);
  }
}

// ---- From the minimum up: Q4_1, Q5_1

template <int kBits>
void EncodeFromMinimum(const float* values, std::byte* out) {
  constexpr int kMax = (1 << kBits) - 1;
  const auto [minimum, max] = std::minmax_element(values, values + kBlock);
  const float d = (*max - *minimum) / static_cast<float>(kMax);
  const float inverse = InverseOf(d);
  Quants q;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const int rounded = RoundHalfAway((values[i] - *minimum) * inverse);
    q[i] = static_cast<std::uint8_t>(std::min(kMax, rounded));
  }
  Store(out, F32ToF16(d));
  Store(out + 2, F32ToF16(*minimum));
  if constexpr (kBits == 5) StoreHighBits(q, out + 4);
  StoreNibbles(q, out + (kBits == 5 ? 8 : 4));
}

template <int kBits>
void DecodeFromMinimum(const std::byte* bytes, float* values) {
  const float d = F16ToF32(Load<std::uint16_t>(bytes));
  const float m = F16ToF32(Load<std::uint16_t>(bytes + 2));
  Quants q = LoadNibbles(bytes + (kBits == 5 ? 8 : 4));
  if constexpr (kBits == 5) AddHighBits(Load<std::uint32_t>(bytes + 4), q);
  for (std::size_t i = 0; i < kBlock; ++i) values[i] = d * static_cast<float>(q[i]) + m;
}

// ---- Q8_0

void EncodeQ8(const float* values, std::byte* out) {
  const float d = std::fabs(Furthest(values)) / 127.0f;
  const float inverse = InverseOf(d);
  std::array<std::int8_t, kBlock> q;
  for (std::size_t i = 0; i < kBlock; ++i) {
    q[i] = static_cast<std::int8_t>(RoundHalfAway(values[i] * inverse));
  }
  Store(out, F32ToF16(d));
  std::memcpy(out + 2, q.data(), sizeof(q));
}

void DecodeQ8(const std::byte* bytes, float* values) {
  const float d = F16ToF32(Load<std::uint16_t>(bytes));
  for (std::size_t i = 0; i < kBlock; ++i) {
    values[i] = d * static_cast<float>(Load<std::int8_t>(bytes + 2 + i));
  }
}

}  // namespace

const BlockCodec kQ4_0{EncodeAroundZero<4>, DecodeAroundZero<4>};
const BlockCodec kQ4_1{EncodeFromMinimum<4>, DecodeFromMinimum<4>};
const BlockCodec kQ5_0{EncodeAroundZero<5>, DecodeAroundZero<5>};
const BlockCodec kQ5_1{EncodeFromMinimum<5>, DecodeFromMinimum<5>};
const BlockCodec kQ8_0{EncodeQ8, DecodeQ8};

}  // namespace kvcache::codec
