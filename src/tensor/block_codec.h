// Codecs of the block types: a codec converts one block of values to bytes and back. Quantize and
// Dequantize apply it along a row. There is one file per family:
//
//   quantize_blocks.cc        Q4_0, Q4_1, Q5_0, Q5_1, Q8_0     blocks of 32
//   quantize_mxfp4.cc         MXFP4                            blocks of 32
//   quantize_super_blocks.cc  Q4_K, Q5_K, Q6_K                 super-blocks of 256
//   coded_block.cc            codes of 2 to 4 bits, codebooks  coded_block.h
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvcache::codec {

// `values` and `bytes` are one block: DTypeInfo::block_size values and block_bytes bytes.
// REQUIRES, for Encode: finite values. Types without an encoder are read only.
struct BlockCodec {
  void (*encode)(const float* values, std::byte* bytes);
  void (*decode)(const std::byte* bytes, float* values);
};

extern const BlockCodec kQ4_0;
extern const BlockCodec kQ4_1;
extern const BlockCodec kQ5_0;
extern const BlockCodec kQ5_1;
extern const BlockCodec kQ8_0;
extern const BlockCodec kQ4_K;
extern const BlockCodec kQ5_K;
extern const BlockCodec kQ6_K;
extern const BlockCodec kMXFP4;
// coded_block.cc
extern const BlockCodec kQ2_K;
extern const BlockCodec kQ3_K;
extern const BlockCodec kIQ4_NL;
extern const BlockCodec kIQ4_XS;
extern const BlockCodec kIQ3_S;
extern const BlockCodec kIQ3_XXS;
extern const BlockCodec kIQ2_S;
extern const BlockCodec kIQ2_XS;
extern const BlockCodec kIQ2_XXS;
extern const BlockCodec kIQ1_S;
extern const BlockCodec kIQ1_M;
extern const BlockCodec kTQ1_0;
extern const BlockCodec kTQ2_0;
extern const BlockCodec kNVFP4;

template <typename T>
void Store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// std::round without a function call per value, so that the compiler can vectorise loops.
// REQUIRES: |x| < 2^31.
inline std::int32_t RoundHalfAway(float x) {
  const auto whole = static_cast<std::int32_t>(x);
  const float rest = x - static_cast<float>(whole);  // exact
  const std::int32_t up = rest >= 0.5f ? 1 : 0;
  const std::int32_t down = rest <= -0.5f ? 1 : 0;
  return whole + up - down;
}

// 1 / d, or 0 if that overflows. In that case f16(d) is zero, so the quants do not matter.
inline float InverseOf(float d) {
  const float magnitude = d < 0.0f ? -d : d;
  return magnitude >= 0x1p-127f ? 1.0f / d : 0.0f;
}

}  // namespace kvcache::codec
