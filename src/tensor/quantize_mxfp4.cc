// MXFP4: blocks of 32 floats of four bits that share a power of two.
//
//   e (one byte), 16 × nibbles        value = 2^(e - 127) × f
//
//   nibble   0  1    2  3    4  5  6  7   8 to 15
//   f        0  0.5  1  1.5  2  3  4  6   the same, negated (8 is -0)
//
// Byte i of the nibbles holds value i in its lower half and value i + 16 in its upper. Here, as in
// the kernels, f is doubled to an integer and the power halved: 2^(e - 128) is a float for every e.
// So e = 255, which the specification keeps for what is not a number, is 2^127, as in ggml; nibble
// 8 is 0 and not -0.
//
// Sources: Open Compute Project, "OCP Microscaling Formats (MX) Specification" 1.0 (2023); ggml's
// block_mxfp4 and quantize_row_mxfp4_ref (ggml-quants.c) for the bytes and the choice of e.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "tensor/block_codec.h"

namespace kvcache::codec {
namespace {

constexpr std::size_t kHalfBlock = 16;
constexpr std::array<int, 16> kDoubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(e - 128); subnormal for e of 0 and 1.
float ScaleOf(std::uint32_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// Returns the nibble with the nearest value, the first of two equally near.
std::uint8_t Nearest(float value, float scale) {
  const auto distance = [&](int doubled) {
    return std::fabs(value - scale * static_cast<float>(doubled));
  };
  const auto* const nearest = std::ranges::min_element(kDoubled, {}, distance);
  return static_cast<std::uint8_t>(nearest - kDoubled.begin());
}

// Chooses the scale so that the largest value is 4 to 8 times the scale.
void Encode(const float* values, std::byte* bytes) {
  float max = 0.0f;
  for (std::size_t i = 0; i < 2 * kHalfBlock; ++i) max = std::max(max, std::fabs(values[i]));
  const int exponent = max > 0.0f ? std::ilogb(max) - 2 + 127 : 0;
  const auto e = static_cast<std::uint32_t>(std::max(exponent, 0));
  bytes[0] = static_cast<std::byte>(e);
  const float scale = ScaleOf(e);
  for (std::size_t i = 0; i < kHalfBlock; ++i) {
    const unsigned upper = Nearest(values[i + kHalfBlock], scale);
    bytes[1 + i] = static_cast<std::byte>(Nearest(values[i], scale) | upper << 4);
  }
}

void Decode(const std::byte* bytes, float* values) {
  const float scale = ScaleOf(std::to_integer<std::uint32_t>(bytes[0]));
  for (std::size_t i = 0; i < kHalfBlock; ++i) {
    const auto both = std::to_integer<std::size_t>(bytes[1 + i]);
    values[i] = scale * static_cast<float>(kDoubled[both & 15]);
    values[i + kHalfBlock] = scale * static_cast<float>(kDoubled[both >> 4]);
  }
}

}  // namespace

const BlockCodec kMXFP4{Encode, Decode};

}  // namespace kvcache::codec
