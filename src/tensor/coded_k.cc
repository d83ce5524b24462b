// Super-blocks of 256 values, 16 of which share a scale:
//
//   Q2_K  16 × (4 bits of scale, 4 of minimum), 64 bytes of codes, d, dmin
//   Q3_K  32 bytes of high bits, 64 bytes of low bits, 12 bytes of scales, d
//
// The 64 bytes hold two bits of each value: for each half of 128 values 32 bytes, and bits 2 n and
// 2 n + 1 of byte i belong to value i + 32 n. Bit n of high byte i belongs to value i + 32 n. Scale j of
// Q3_K is six bits, minus 32: four are a half of byte j mod 8, two are the pair j / 4 of byte 8 + j mod 4.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "tensor/block_codec.h"
#include "tensor/coded_readers.h"
#include "tensor/float_conversion.h"
#include "tensor/line_fit.h"
#include "tensor/table_fit.h"

namespace kvcache::codec::k {
namespace {

constexpr std::size_t kSuper = 256;
constexpr std::size_t kSub = 16;
constexpr std::size_t kSubs = kSuper / kSub;
constexpr int kMiddle = 32;

// ---- Where the bits lie

void ReadPairs(const std::byte* bytes, std::uint8_t* codes) {
  for (std::size_t i = 0; i < kSuper; ++i) {
    codes[i] = std::to_integer<unsigned>(bytes[i / 128 * 32 + i % 32]) >> i % 128 / 32 * 2 & 3u;
  }
}

void StorePairs(const std::array<std::uint8_t, kSuper>& codes, std::byte* bytes) {
  std::fill(bytes, bytes + kSuper / 4, std::byte{0});
  for (std::size_t i = 0; i < kSuper; ++i) {
    bytes[i / 128 * 32 + i % 32] |= static_cast<std::byte>((codes[i] & 3u) << i % 128 / 32 * 2);
  }
}

// ---- Q2_K: value = scale · q - minimum, minimum >= 0

constexpr int kMaxCode = 3;
constexpr int kMaxScale = 15;

float ErrorOf(const float* values, const LineFit& fit, const LineFit& codes_of) {
  const float inverse = InverseOf(codes_of.scale);
  float error = 0.0f;
  for (std::size_t i = 0; i < kSub; ++i) {
    const auto q = static_cast<float>(CodeOnLine(values[i], codes_of, inverse, kMaxCode));
    const float rest = fit.scale * q - fit.minimum - values[i];
    error += rest * rest;
  }
  return error;
}

LineFit FitSubBlock(const float* values) {
  const auto [low, high] = std::minmax_element(values, values + kSub);
  const float minimum = std::max(0.0f, -*low);
  const float range = std::max(0.0f, *high) + minimum;
  LineFit best{range / kMaxCode, minimum};
  if (!(best.scale > 0.0f)) return best;
  float best_error = ErrorOf(values, best, best);
  const std::span sub(values, kSub);
  constexpr int kSteps = 8;
  for (int step = 0; step < kSteps; ++step) {
    const float share = 1.0f - 0.06f * static_cast<float>(step);
    const LineFit start{range * share / kMaxCode, minimum * share};
    const LineFit fit = ImprovedLine(sub, ImprovedLine(sub, start, kMaxCode), kMaxCode);
    const float error = ErrorOf(values, fit, fit);
    if (error >= best_error) continue;
    best = fit;
    best_error = error;
  }
  return best;
}

unsigned ScaleOf(float value, float d) {
  return static_cast<unsigned>(std::clamp(RoundHalfAway(value * InverseOf(d)), 0, kMaxScale));
}

// ---- Q3_K

constexpr CodeTable kThrees = CodeTypeOf(DType::kQ3_K).table;

void StoreScales(const std::array<int, kSubs>& scales, std::byte* bytes) {
  std::fill(bytes, bytes + 12, std::byte{0});
  for (std::size_t j = 0; j < kSubs; ++j) {
    const auto bits = static_cast<unsigned>(scales[j] + kMiddle);
    bytes[j % 8] |= static_cast<std::byte>((bits & 15u) << j / 8 * 4);
    bytes[8 + j % 4] |= static_cast<std::byte>(bits >> 4 << j / 4 * 2);
  }
}

}  // namespace

void ReadQ2K(const std::byte* bytes, CodedBlock* block) {
  for (std::size_t s = 0; s < kSubs; ++s) {
    block->scales[s] = std::to_integer<unsigned>(bytes[s]) & 15u;
    block->minima[s] = static_cast<std::uint8_t>(std::to_integer<unsigned>(bytes[s]) >> 4);
  }
  ReadPairs(bytes + 16, block->codes.data());
  block->d = Load<std::uint16_t>(bytes + 80);
  block->dmin = Load<std::uint16_t>(bytes + 82);
}

void ReadQ3K(const std::byte* bytes, CodedBlock* block) {
  ReadPairs(bytes + 32, block->codes.data());
  for (std::size_t i = 0; i < kSuper; ++i) {
    const unsigned high = std::to_integer<unsigned>(bytes[i % 32]) >> i / 32 & 1u;
    block->codes[i] = static_cast<std::uint8_t>(block->codes[i] | high << 2);
  }
  for (std::size_t j = 0; j < kSubs; ++j) {
    const unsigned low = std::to_integer<unsigned>(bytes[96 + j % 8]) >> j / 8 * 4 & 15u;
    const unsigned high = std::to_integer<unsigned>(bytes[104 + j % 4]) >> j / 4 * 2 & 3u;
    block->scales[j] = static_cast<std::uint8_t>((low | high << 4) - 32u);
  }
  block->d = Load<std::uint16_t>(bytes + 108);
}

void EncodeQ2K(const float* values, std::byte* bytes) {
  std::array<LineFit, kSubs> fits;
  LineFit largest{0.0f, 0.0f};
  for (std::size_t j = 0; j < kSubs; ++j) {
    fits[j] = FitSubBlock(values + j * kSub);
    largest.scale = std::max(largest.scale, fits[j].scale);
    largest.minimum = std::max(largest.minimum, fits[j].minimum);
  }
  const std::uint16_t d = F32ToF16(largest.scale / kMaxScale);
  const std::uint16_t dmin = F32ToF16(largest.minimum / kMaxScale);
  std::array<std::uint8_t, kSuper> codes;
  for (std::size_t j = 0; j < kSubs; ++j) {
    const unsigned scale = ScaleOf(fits[j].scale, F16ToF32(d));
    const unsigned minimum = ScaleOf(fits[j].minimum, F16ToF32(dmin));
    bytes[j] = static_cast<std::byte>(scale | minimum << 4);
    const LineFit kept{F16ToF32(d) * static_cast<float>(scale),
                       F16ToF32(dmin) * static_cast<float>(minimum)};
    const float inverse = InverseOf(kept.scale);
    for (std::size_t i = j * kSub; i < (j + 1) * kSub; ++i) {
      codes[i] = static_cast<std::uint8_t>(CodeOnLine(values[i], kept, inverse, kMaxCode));
    }
  }
  StorePairs(codes, bytes + 16);
  Store(bytes + 80, d);
  Store(bytes + 82, dmin);
}

void EncodeQ3K(const float* values, std::byte* bytes) {
  std::array<float, kSubs> fits;
  float furthest = 0.0f;
  for (std::size_t j = 0; j < kSubs; ++j) {
    fits[j] = FitTable<kThrees, 8>(values + j * kSub, kSub);
    if (std::fabs(fits[j]) > std::fabs(furthest)) furthest = fits[j];
  }
  const std::uint16_t half = F32ToF16(furthest / static_cast<float>(-kMiddle));
  const float d = F16ToF32(half);
  const float inverse_d = InverseOf(d);
  std::array<int, kSubs> scales;
  std::array<std::uint8_t, kSuper> codes;
  std::fill(bytes, bytes + 32, std::byte{0});
  for (std::size_t j = 0; j < kSubs; ++j) {
    scales[j] = std::clamp(RoundHalfAway(fits[j] * inverse_d), -kMiddle, kMiddle - 1);
    const float inverse = InverseOf(d * static_cast<float>(scales[j]));
    for (std::size_t i = j * kSub; i < (j + 1) * kSub; ++i) {
      codes[i] = static_cast<std::uint8_t>(NearestCode<kThrees, 8>(values[i] * inverse));
      bytes[i % 32] |= static_cast<std::byte>((codes[i] >> 2 & 1u) << i / 32);
    }
  }
  StorePairs(codes, bytes + 32);
  StoreScales(scales, bytes + 96);
  Store(bytes + 108, half);
}

}  // namespace kvcache::codec::k
