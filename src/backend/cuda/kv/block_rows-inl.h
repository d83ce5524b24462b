// Rows of block types (q8_0, q4_0) for a warp: the Hadamard transform, rounding, writing and reading. Bits
// are those of src/backend/cpu/kv/kv_quantize-inl.h and hadamard-inl.h: change both.
//
// A lane holds value `lane` of a block of 32.
#pragma once

#include <cstdint>

#include "backend/cuda/kv/cell_array-inl.h"
#include "backend/cuda/language/kernel.h"
#include "kvcache/types.h"

namespace kvcache::cuda {

// Transforms row[0, dim) in place, `size` values at a time. A lane touches the values whose index is its own
// plus a multiple of 32, before and after.
KVCACHE_DEVICE void HadamardRow(float* row, int dim, int size, float factor) {
  const int lane = Lane();
  for (int i = lane; i < dim; i += 32) {
    float x = row[i];
    for (int half = 1; half < 32; half *= 2) {
      const float partner = ShuffleXor(x, half);
      x = Add(partner, (lane & half) != 0 ? -x : x);
    }
    row[i] = x;
  }
  for (int half = 32; half < size; half *= 2) {
    for (int i = lane; i < dim; i += 32) {
      if ((i & half) != 0) continue;
      const float a = row[i];
      const float b = row[i + half];
      row[i] = Add(a, b);
      row[i + half] = Sub(a, b);
    }
  }
  for (int i = lane; i < dim; i += 32) row[i] = Mul(row[i], factor);
}

// A lane's part of a block: q8_0: byte `lane`; q4_0: byte lane % 16.
struct BlockLane {
  std::uint32_t code;  // as in a tile
  std::uint16_t scale;
};

// The bits of the largest magnitude of a warp's values.
KVCACHE_DEVICE std::uint32_t LargestBits(std::uint32_t largest) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const std::uint32_t other = ShuffleXor(largest, mask);
    largest = other > largest ? other : largest;
  }
  return largest;
}
KVCACHE_DEVICE std::uint32_t LargestOf(float x) {
  return LargestBits(BitsOf(x) & 0x7fffffffu);
}

// `largest` are the bits of the largest magnitude of the values that share the scale.
template <bool kBytes>
KVCACHE_DEVICE BlockLane RoundBlock(float x, std::uint32_t largest) {
  const std::uint32_t bits = BitsOf(x) & 0x7fffffffu;
  // The sign of the first of the largest magnitudes.
  const std::uint32_t equal = Ballot(bits == largest);
  const std::uint32_t negative = Ballot((BitsOf(x) >> 31) != 0);
  if (largest > 0x7f7fffffu) return {kBytes ? 0x80u : 0x88u, 0x7e00u};
  const float magnitude = FloatOf(largest);
  float scale = 0.0f;
  if constexpr (kBytes) {
    scale = Div(magnitude, 127.0f);
  } else {
    const bool minus = largest != 0 && (equal & (0u - equal) & negative) != 0;
    scale = Div(minus ? -magnitude : magnitude, -8.0f);
  }
  const float size = FloatOf(BitsOf(scale) & 0x7fffffffu);
  const float inverse = size >= 0x1p-127f ? Div(1.0f, scale) : 0.0f;
  const float scaled = Mul(x, inverse);
  if constexpr (kBytes) {
    const int whole = static_cast<int>(scaled);
    const float rest = Sub(scaled, static_cast<float>(whole));
    const int code = whole + static_cast<int>(Add(rest, rest));  // rounds half away from zero
    return {(static_cast<std::uint32_t>(code) & 0xffu) ^ 0x80u, ToHalf(scale)};
  } else {
    const int shifted = static_cast<int>(Add(scaled, 8.5f));
    const auto code = static_cast<std::uint32_t>(shifted < 15 ? shifted : 15);
    const std::uint32_t high = ShuffleXor(code, 16);
    return {Lane() < 16 ? code | high << 4 : high | code << 4, ToHalf(scale)};
  }
}

// Writes block `block` of a cell's head. Only the cell's own bytes are written.
template <bool kBytes>
KVCACHE_DEVICE void WriteKeyBlock(const CellArray& codes, const CellArray& scales,
                                  std::int64_t head, int cell, int block, float x,
                                  std::uint32_t largest) {
  const BlockLane part = RoundBlock<kBytes>(x, largest);
  const int lane = Lane();
  std::uint32_t four = part.code << (lane % 4 * 8);
  four |= ShuffleXor(four, 1);
  four |= ShuffleXor(four, 2);
  constexpr int kCodes = kBytes ? 32 : 16;
  if (lane % 4 == 0 && lane < kCodes) {
    *reinterpret_cast<std::uint32_t*>(At(codes, head, cell, block * (kCodes / 4) + lane / 4)) =
        four;
  }
  if (lane == 0) *reinterpret_cast<std::uint16_t*>(At(scales, head, cell, block)) = part.scale;
}

template <bool kBytes>
KVCACHE_DEVICE void WriteValueBlock(const CellArray& codes, const CellArray& scales,
                                    std::int64_t head, int cell, int block, float x) {
  const BlockLane part = RoundBlock<kBytes>(x, LargestOf(x));
  const int lane = Lane();
  constexpr int kCodes = kBytes ? 32 : 16;
  if (lane < kCodes) {
    *reinterpret_cast<std::uint8_t*>(At(codes, head, cell, block * kCodes + lane)) =
        static_cast<std::uint8_t>(part.code);
  }
  if (lane == 0) *reinterpret_cast<std::uint16_t*>(At(scales, head, cell, block)) = part.scale;
}

// Returns the lane's value of a key's block.
template <bool kBytes>
KVCACHE_DEVICE float ReadKeyBlock(const CellArray& codes, const CellArray& scales,
                                  std::int64_t head, int cell, int block) {
  const int lane = Lane();
  constexpr int kCodes = kBytes ? 32 : 16;
  const int byte = lane % kCodes;
  const std::uint32_t four = *reinterpret_cast<const std::uint32_t*>(
      At(codes, head, cell, block * (kCodes / 4) + byte / 4));
  const int code = static_cast<int>(four >> (byte % 4 * 8) & 0xffu);
  const float scale =
      FromHalf(*reinterpret_cast<const std::uint16_t*>(At(scales, head, cell, block)));
  if constexpr (kBytes) {
    return Mul(static_cast<float>(code - 128), scale);
  } else {
    return Mul(static_cast<float>((lane < 16 ? code & 15 : code >> 4) - 8), scale);
  }
}

}  // namespace kvcache::cuda
