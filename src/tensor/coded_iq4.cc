// Types of four bits with a table of 16 values:
//
//   IQ4_NL  blocks of 32: d, 16 × nibbles
//   IQ4_XS  super-blocks of 256: d, high bits of the scales (u16, 2 each), low bits (4 bytes, 4 each),
//           8 × 16 × nibbles; a scale is its bits - 32
//   NVFP4   blocks of 64: 4 scales of 8 bits, 4 × 8 × nibbles, for 16 values each
//
// A byte of nibbles holds the value i in its lower half and the value i + 16 (NVFP4: i + 8) in its upper.
#include <algorithm>
#include <array>
#include <cmath>

#include "tensor/block_codec.h"
#include "tensor/coded_readers.h"
#include "tensor/float_conversion.h"
#include "tensor/table_fit.h"

namespace kvcache::codec::iq4 {
namespace {

constexpr std::size_t kBlock = 32;
constexpr std::size_t kBlocks = 8;
constexpr CodeTable kTable = CodeTypeOf(DType::kIQ4_NL).table;

// `bytes` [half] hold the codes of 2 half values.
void ReadNibbles(const std::byte* bytes, std::size_t half, std::uint8_t* codes) {
  for (std::size_t i = 0; i < half; ++i) {
    const auto both = std::to_integer<unsigned>(bytes[i]);
    codes[i] = both & 15u;
    codes[i + half] = static_cast<std::uint8_t>(both >> 4);
  }
}

void StoreNearest(const float* values, float scale, std::byte* bytes) {
  const float inverse = InverseOf(scale);
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    const unsigned low = NearestCode<kTable, 16>(values[i] * inverse);
    const unsigned high = NearestCode<kTable, 16>(values[i + kBlock / 2] * inverse);
    bytes[i] = static_cast<std::byte>(low | high << 4);
  }
}

}  // namespace

void ReadIq4Nl(const std::byte* bytes, CodedBlock* block) {
  block->d = Load<std::uint16_t>(bytes);
  ReadNibbles(bytes + 2, 16, &block->codes[0]);
}

void ReadIq4Xs(const std::byte* bytes, CodedBlock* block) {
  block->d = Load<std::uint16_t>(bytes);
  const unsigned high = Load<std::uint16_t>(bytes + 2);
  for (std::size_t b = 0; b < kBlocks; ++b) {
    const unsigned low = std::to_integer<unsigned>(bytes[4 + b / 2]) >> b % 2 * 4 & 15u;
    block->scales[b] = static_cast<std::uint8_t>((low | (high >> 2 * b & 3u) << 4) - 32u);
    ReadNibbles(bytes + 8 + 16 * b, 16, &block->codes[kBlock * b]);
  }
}

void ReadNvfp4(const std::byte* bytes, CodedBlock* block) {
  for (std::size_t s = 0; s < 4; ++s) {
    block->scales[s] = std::to_integer<std::uint8_t>(bytes[s]);
    ReadNibbles(bytes + 4 + 8 * s, 8, &block->codes[16 * s]);
  }
}

void EncodeIq4Nl(const float* values, std::byte* bytes) {
  const std::uint16_t d = F32ToF16(FitTable<kTable, 16>(values, kBlock));
  Store(bytes, d);
  StoreNearest(values, F16ToF32(d), bytes + 2);
}

void EncodeIq4Xs(const float* values, std::byte* bytes) {
  std::array<float, kBlocks> scales;
  float furthest = 0.0f;
  for (std::size_t b = 0; b < kBlocks; ++b) {
    scales[b] = FitTable<kTable, 16>(values + b * kBlock, kBlock);
    if (std::fabs(scales[b]) > std::fabs(furthest)) furthest = scales[b];
  }
  const std::uint16_t half = F32ToF16(furthest / -32.0f);
  const float d = F16ToF32(half);
  const float inverse = InverseOf(d);
  unsigned high = 0;
  std::array<unsigned, kBlocks / 2> low{};
  for (std::size_t b = 0; b < kBlocks; ++b) {
    const int scale = std::clamp(RoundHalfAway(scales[b] * inverse), -32, 31);
    const auto bits = static_cast<unsigned>(scale + 32);
    high |= bits >> 4 << 2 * b;
    low[b / 2] |= (bits & 15u) << b % 2 * 4;
    StoreNearest(values + b * kBlock, d * static_cast<float>(scale), bytes + 8 + 16 * b);
  }
  Store(bytes, half);
  Store(bytes + 2, static_cast<std::uint16_t>(high));
  for (std::size_t i = 0; i < low.size(); ++i) bytes[4 + i] = static_cast<std::byte>(low[i]);
}

}  // namespace kvcache::codec::iq4
