// Super-blocks of 256 values: f16 factors for the super-block, small integer scales for sub-blocks.
//
//   Q4_K   d, dmin (f16), 12 bytes of scales, 128 bytes of nibbles
//   Q5_K   d, dmin (f16), 12 bytes of scales, 32 bytes of fifth bits, 128 bytes of nibbles
//            8 sub-blocks j of 32; value = (d · sc_j) · q - dmin · m_j, sc and m of 6 bits
//   Q6_K   128 bytes of nibbles, 64 bytes of fifth and sixth bits, 16 × int8 scales, d (f16)
//            16 sub-blocks j of 16; value = (d · sc_j) · (q - 32)
//
// Nibbles of Q4_K and Q5_K: 32 bytes for each two sub-blocks, the even one in the lower halves;
// bit j of byte i of the fifth bits belongs to value i of sub-block j. The 12 bytes hold the
// lower 6 bits of sc_0..3, then of m_0..3, then the lower 4 bits of sc_4..7 (lower halves) and
// of m_4..7 (upper halves), whose upper 2 bits are on top of the first eight.
// Q6_K, for each half of 128 values: 64 bytes of nibbles, values i and i + 64 in byte i; 32 bytes
// whose bits 2g and 2g + 1 belong to value i + 32 g.
//
// Products are exact in f32 (at most 11 + 8 + 5 bits); one rounding, that of the difference.
//
// Source: ggml's block_q*_K and dequantize_row_q*_K (ggml-quants.c). The quantisers here are not
// ggml's: a least-squares fit per sub-block instead of its search.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "tensor/block_codec.h"
#include "tensor/float_conversion.h"
#include "tensor/line_fit.h"

namespace kvcache::codec {
namespace {

constexpr std::size_t kSuper = 256;
constexpr std::size_t kSub = 32;
constexpr std::size_t kSubs = kSuper / kSub;
constexpr int kMaxScale = 63;

// ---- The 12 bytes of scales

struct Scales {
  std::array<std::uint8_t, kSubs> sc;
  std::array<std::uint8_t, kSubs> m;
};

Scales LoadScales(const std::byte* bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(bytes[i]); };
  Scales s;
  for (std::size_t j = 0; j < 4; ++j) {
    s.sc[j] = static_cast<std::uint8_t>(at(j) & 63u);
    s.m[j] = static_cast<std::uint8_t>(at(j + 4) & 63u);
    s.sc[j + 4] = static_cast<std::uint8_t>((at(j + 8) & 15u) | at(j) >> 6 << 4);
    s.m[j + 4] = static_cast<std::uint8_t>(at(j + 8) >> 4 | at(j + 4) >> 6 << 4);
  }
  return s;
}

void StoreScales(const Scales& s, std::byte* out) {
  for (std::size_t j = 0; j < 4; ++j) {
    out[j] = static_cast<std::byte>(s.sc[j] | s.sc[j + 4] >> 4 << 6);
    out[j + 4] = static_cast<std::byte>(s.m[j] | s.m[j + 4] >> 4 << 6);
    out[j + 8] = static_cast<std::byte>((s.sc[j + 4] & 15) | (s.m[j + 4] & 15) << 4);
  }
}

// ---- Q4_K and Q5_K

LineFit FitSubBlock(const float* values, int max) {
  const auto [low, high] = std::minmax_element(values, values + kSub);
  const float minimum = std::max(0.0f, -*low);
  const float range = std::max(0.0f, *high) + minimum;
  const LineFit fit{range / static_cast<float>(max), minimum};
  const std::span sub(values, kSub);
  return fit.scale > 0.0f ? ImprovedLine(sub, ImprovedLine(sub, fit, max), max) : fit;
}

int ScaleOf(float value, float inverse) {
  return std::clamp(RoundHalfAway(value * inverse), 0, kMaxScale);
}

template <int kBits>
void StoreQuants(const std::array<std::uint8_t, kSuper>& q, std::byte* out) {
  std::byte* const nibbles = out + (kBits == 5 ? kSub : 0);
  for (std::size_t i = 0; i < kSuper / 2; ++i) {
    const std::size_t even = i / kSub * 2 * kSub + i % kSub;
    nibbles[i] = static_cast<std::byte>((q[even] & 15) | (q[even + kSub] & 15) << 4);
  }
  if constexpr (kBits == 5) {
    for (std::size_t i = 0; i < kSub; ++i) {
      unsigned high = 0;
      for (std::size_t j = 0; j < kSubs; ++j) high |= (q[j * kSub + i] >> 4 & 1u) << j;
      out[i] = static_cast<std::byte>(high);
    }
  }
}

template <int kBits>
void EncodeWithMinimum(const float* values, std::byte* out) {
  constexpr int kMax = (1 << kBits) - 1;
  std::array<LineFit, kSubs> fits;
  LineFit largest{0.0f, 0.0f};
  for (std::size_t j = 0; j < kSubs; ++j) {
    fits[j] = FitSubBlock(values + j * kSub, kMax);
    largest.scale = std::max(largest.scale, fits[j].scale);
    largest.minimum = std::max(largest.minimum, fits[j].minimum);
  }
  const std::uint16_t d = F32ToF16(largest.scale / kMaxScale);
  const std::uint16_t dmin = F32ToF16(largest.minimum / kMaxScale);
  Scales scales;
  std::array<std::uint8_t, kSuper> q;
  for (std::size_t j = 0; j < kSubs; ++j) {
    scales.sc[j] = static_cast<std::uint8_t>(ScaleOf(fits[j].scale, InverseOf(F16ToF32(d))));
    scales.m[j] = static_cast<std::uint8_t>(ScaleOf(fits[j].minimum, InverseOf(F16ToF32(dmin))));
    const LineFit kept{F16ToF32(d) * static_cast<float>(scales.sc[j]),
                       F16ToF32(dmin) * static_cast<float>(scales.m[j])};
    const float inverse = InverseOf(kept.scale);
    for (std::size_t i = j * kSub; i < (j + 1) * kSub; ++i) {
      q[i] = static_cast<std::uint8_t>(CodeOnLine(values[i], kept, inverse, kMax));
    }
  }
  Store(out, d);
  Store(out + 2, dmin);
  StoreScales(scales, out + 4);
  StoreQuants<kBits>(q, out + 16);
}

template <int kBits>
void DecodeWithMinimum(const std::byte* bytes, float* values) {
  const float d = F16ToF32(Load<std::uint16_t>(bytes));
  const float dmin = F16ToF32(Load<std::uint16_t>(bytes + 2));
  const Scales scales = LoadScales(bytes + 4);
  const std::byte* const high = bytes + 16;
  const std::byte* const nibbles = high + (kBits == 5 ? kSub : 0);
  for (std::size_t j = 0; j < kSubs; ++j) {
    const float scale = d * static_cast<float>(scales.sc[j]);
    const float minimum = dmin * static_cast<float>(scales.m[j]);
    for (std::size_t i = 0; i < kSub; ++i) {
      unsigned q = static_cast<unsigned>(nibbles[j / 2 * kSub + i]) >> j % 2 * 4 & 15u;
      if constexpr (kBits == 5) q |= (static_cast<unsigned>(high[i]) >> j & 1u) << 4;
      values[j * kSub + i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

// ---- Q6_K

constexpr std::size_t kSmallSub = 16;
constexpr std::size_t kSmallSubs = kSuper / kSmallSub;
constexpr int kMiddle = 32;
constexpr std::size_t kHalfSuper = kSuper / 2;
constexpr std::size_t kHighAt = 128;
constexpr std::size_t kScalesAt = 192;
constexpr std::size_t kFactorAt = 208;

// The places of value i's bits: its nibble and its two high bits.
struct Place {
  std::size_t nibble;
  std::size_t nibble_shift;
  std::size_t high;
  std::size_t high_shift;
};

constexpr Place PlaceOf(std::size_t i) {
  const std::size_t half = i / kHalfSuper;
  const std::size_t in_half = i % kHalfSuper;
  return {half * 64 + in_half % 64, in_half / 64 * 4, kHighAt + half * 32 + in_half % 32,
          in_half / 32 * 2};
}

// Returns the scale with which the value furthest from zero becomes the lowest quant.
float ScaleAroundZero(const float* values) {
  float furthest = 0.0f;
  for (std::size_t i = 0; i < kSmallSub; ++i) {
    if (std::fabs(values[i]) > std::fabs(furthest)) furthest = values[i];
  }
  return furthest / static_cast<float>(-kMiddle);
}

void EncodeQ6K(const float* values, std::byte* out) {
  std::array<float, kSmallSubs> scales;
  float furthest = 0.0f;
  for (std::size_t j = 0; j < kSmallSubs; ++j) {
    scales[j] = ScaleAroundZero(values + j * kSmallSub);
    if (std::fabs(scales[j]) > std::fabs(furthest)) furthest = scales[j];
  }
  std::fill(out, out + kScalesAt, std::byte{0});
  const std::uint16_t d = F32ToF16(furthest / -128.0f);
  const float inverse_d = InverseOf(F16ToF32(d));
  for (std::size_t j = 0; j < kSmallSubs; ++j) {
    const int sc = std::clamp(RoundHalfAway(scales[j] * inverse_d), -128, 127);
    out[kScalesAt + j] = static_cast<std::byte>(sc);
    const float inverse = InverseOf(F16ToF32(d) * static_cast<float>(sc));
    for (std::size_t i = j * kSmallSub; i < (j + 1) * kSmallSub; ++i) {
      const int rounded = RoundHalfAway(values[i] * inverse);
      const auto q = static_cast<unsigned>(std::clamp(rounded, -kMiddle, kMiddle - 1) + kMiddle);
      const Place at = PlaceOf(i);
      out[at.nibble] |= static_cast<std::byte>((q & 15u) << at.nibble_shift);
      out[at.high] |= static_cast<std::byte>(q >> 4 << at.high_shift);
    }
  }
  Store(out + kFactorAt, d);
}

void DecodeQ6K(const std::byte* bytes, float* values) {
  const float d = F16ToF32(Load<std::uint16_t>(bytes + kFactorAt));
  for (std::size_t i = 0; i < kSuper; ++i) {
    const float scale =
        d * static_cast<float>(Load<std::int8_t>(bytes + kScalesAt + i / kSmallSub));
    const Place at = PlaceOf(i);
    const unsigned low = static_cast<unsigned>(bytes[at.nibble]) >> at.nibble_shift & 15u;
    const unsigned high = static_cast<unsigned>(bytes[at.high]) >> at.high_shift & 3u;
    values[i] = scale * static_cast<float>(static_cast<int>(low | high << 4) - kMiddle);
  }
}

}  // namespace

const BlockCodec kQ4_K{EncodeWithMinimum<4>, DecodeWithMinimum<4>};
const BlockCodec kQ5_K{EncodeWithMinimum<5>, DecodeWithMinimum<5>};
const BlockCodec kQ6_K{EncodeQ6K, DecodeQ6K};

}  // namespace kvcache::codec
