// The chains of docs/design/exactness.md for block-quantized weights, one value at a time, from
// the bytes of a model file. The kernels must give the same bits. Written from the formats'
// definitions, independently of the kernels and of src/tensor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/testing.h"
#include "kvcache/types.h"
#include "tensor/coded_block.h"
#include "tensor/float_conversion.h"

namespace kvcache::cpu::testing {

// A row's blocks as integers and factors. `sub` values share a scale.
struct BlockRow {
  std::int64_t sub = 32;
  bool per_256 = false;    // how activations are quantized
  std::int64_t span = 32;  // activations that share a scale
  bool has_minimum = false;
  std::vector<int> q;         // signed, unless has_minimum
  std::vector<float> scale;   // per sub-block
  std::vector<float> offset;  // per sub-block, where has_minimum: added to scale × q
};

inline float HalfAt(const std::byte* at) {
  std::uint16_t half;
  std::memcpy(&half, at, 2);
  return F16ToF32(half);
}

inline int ByteAt(const std::byte* bytes, std::int64_t i) {
  return static_cast<int>(bytes[i]);
}

// A power of two, then nibbles that are indices into these halves.
inline void AppendMxfp4(const std::byte* block, BlockRow& row) {
  constexpr int kHalves[] = {0, 1, 2, 3, 4, 6, 8, 12};
  row.scale.push_back(std::ldexp(0.5f, ByteAt(block, 0) - 127));
  for (int i = 0; i < 32; ++i) {
    const int nibble = ByteAt(block, 1 + i % 16) >> (i / 16 * 4) & 15;
    row.q.push_back(nibble < 8 ? kHalves[nibble] : -kHalves[nibble - 8]);
  }
}

// Blocks of 32: f16 d, (f16 m,) (32 fifth bits,) nibbles or bytes.
inline void AppendBlock(DType dtype, const std::byte* block, BlockRow& row) {
  const bool five = dtype == DType::kQ5_0 || dtype == DType::kQ5_1;
  const int middle = dtype == DType::kQ4_0 ? 8 : dtype == DType::kQ5_0 ? 16 : 0;
  row.scale.push_back(HalfAt(block));
  if (row.has_minimum) row.offset.push_back(HalfAt(block + 2));
  const std::byte* const rest = block + (row.has_minimum ? 4 : 2);
  for (int i = 0; i < 32; ++i) {
    if (dtype == DType::kQ8_0) {
      row.q.push_back(static_cast<std::int8_t>(rest[i]));
      continue;
    }
    const int nibble = ByteAt(rest, (five ? 4 : 0) + i % 16) >> (i / 16 * 4) & 15;
    const int fifth = five ? ByteAt(rest, i / 8) >> (i % 8) & 1 : 0;
    row.q.push_back(nibble + 16 * fifth - middle);
  }
}

// Q4_K, Q5_K.
inline void AppendSuperBlock(DType dtype, const std::byte* super, BlockRow& row) {
  const bool five = dtype == DType::kQ5_K;
  const std::byte* const packed = super + 4;
  for (int j = 0; j < 8; ++j) {
    const int sc = j < 4 ? ByteAt(packed, j) & 63
                         : (ByteAt(packed, j + 4) & 15) + (ByteAt(packed, j - 4) >> 6) * 16;
    const int m = j < 4 ? ByteAt(packed, j + 4) & 63
                        : (ByteAt(packed, j + 4) >> 4) + (ByteAt(packed, j) >> 6) * 16;
    row.scale.push_back(HalfAt(super) * static_cast<float>(sc));
    row.offset.push_back(-(HalfAt(super + 2) * static_cast<float>(m)));
    for (int i = 0; i < 32; ++i) {
      const int nibble = ByteAt(super, (five ? 48 : 16) + j / 2 * 32 + i) >> (j % 2 * 4) & 15;
      row.q.push_back(nibble + (five ? (ByteAt(super, 16 + i) >> j & 1) * 16 : 0));
    }
  }
}

inline void AppendQ6K(const std::byte* super, BlockRow& row) {
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int j = i % 128;
    const int nibble = ByteAt(super, half * 64 + j % 64) >> (j / 64 * 4) & 15;
    const int high = ByteAt(super, 128 + half * 32 + j % 32) >> (j / 32 * 2) & 3;
    row.q.push_back(nibble + high * 16 - 32);
    if (i % 16 != 0) continue;
    row.scale.push_back(HalfAt(super + 208) *
                        static_cast<float>(static_cast<std::int8_t>(super[192 + i / 16])));
  }
}

// Types of codes, as src/tensor takes them apart; tests/oracle compares that with numpy and ggml.
inline void AppendCoded(DType dtype, const std::byte* bytes, BlockRow& row) {
  const codec::CodeType type = codec::CodeTypeOf(dtype);
  codec::CodedBlock block;
  codec::ReadCodedBlock(dtype, bytes, &block);
  for (int i = 0; i < InfoOf(dtype).block_size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    row.q.push_back(type.table[block.codes[at]]);
    if (i % type.sub != 0) continue;
    const std::size_t sub = at / static_cast<std::size_t>(type.sub);
    const float small = dtype == DType::kNVFP4
                            ? codec::ScaleOfNvfp4(block.scales[sub])
                            : static_cast<float>(static_cast<std::int8_t>(block.scales[sub]));
    row.scale.push_back(F16ToF32(block.d) * type.factor * small);
    if (row.has_minimum) {
      row.offset.push_back(-(F16ToF32(block.dmin) * static_cast<float>(block.minima[sub])));
    }
  }
}

inline BlockRow ReadBlockRow(DType dtype, const std::byte* bytes, std::int64_t inputs) {
  BlockRow row;
  row.per_256 = InfoOf(dtype).block_size == 256;
  row.has_minimum = dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K ||
                    dtype == DType::kQ5_K || dtype == DType::kQ2_K;
  const codec::CodeType code = codec::CodeTypeOf(dtype);
  if (dtype == DType::kQ6_K) row.sub = 16;
  if (code.bits > 0) row.sub = code.sub;
  row.span = row.per_256 ? 256 : row.sub;
  for (std::int64_t i = 0; i < inputs; i += InfoOf(dtype).block_size) {
    const std::byte* const block = bytes + BytesOf(dtype, i);
    if (code.bits > 0) {
      AppendCoded(dtype, block, row);
    } else if (dtype == DType::kQ6_K) {
      AppendQ6K(block, row);
    } else if (dtype == DType::kMXFP4) {
      AppendMxfp4(block, row);
    } else if (row.per_256) {
      AppendSuperBlock(dtype, block, row);
    } else {
      AppendBlock(dtype, block, row);
    }
  }
  return row;
}

// Quantizes x [count] to integers and returns their scale.
inline float QuantizeInputs(const float* x, std::int64_t count, std::vector<int>& q) {
  float max = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) max = std::max(max, std::fabs(x[i]));
  const float scale = max / 127.0f;
  const float inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
  q.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    q.push_back(static_cast<int>(std::nearbyintf(x[i] * inverse)));
  }
  return scale;
}

inline float DotBlocks(const BlockRow& row, const float* x, MulAdd mul_add) {
  const auto inputs = static_cast<std::int64_t>(row.q.size());
  const std::int64_t span = row.span;
  float y = 0.0f;
  std::vector<int> q;
  for (std::int64_t from = 0; from < inputs; from += span) {
    const float x_scale = QuantizeInputs(x + from, span, q);
    float part = row.per_256 ? 0.0f : y;
    for (std::int64_t i = 0; i < span; i += row.sub) {
      std::int32_t dot = 0;
      std::int32_t sum = 0;
      for (std::int64_t k = i; k < i + row.sub; ++k) {
        dot += row.q[static_cast<std::size_t>(from + k)] * q[static_cast<std::size_t>(k)];
        sum += q[static_cast<std::size_t>(k)];
      }
      const auto sub = static_cast<std::size_t>((from + i) / row.sub);
      if (row.per_256) {
        part = mul_add(static_cast<float>(dot), row.scale[sub], part);
      } else {
        const float scaled = static_cast<float>(dot) * row.scale[sub];
        part = mul_add(scaled, x_scale, part);
      }
      if (!row.has_minimum) continue;
      const float total = static_cast<float>(sum);
      part = mul_add(row.offset[sub], row.per_256 ? total : x_scale * total, part);
    }
    y = row.per_256 ? mul_add(part, x_scale, y) : part;
  }
  return y;
}

}  // namespace kvcache::cpu::testing
