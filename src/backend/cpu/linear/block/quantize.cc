// Rounds a call's activations to integers with scales, for products with block-quantised weights.
#include <algorithm>
#include <limits>

#include "backend/cpu/common/token_tiles.h"
#include "backend/cpu/cpu_target.h"
#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cpu/linear/tiles/tile_tokens.h"
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/block/quantize.cc"
#include "hwy/foreach_target.h"
// After it, so that they compile once per target.
#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/simd/simd-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest magnitude. It compares the floats' bits as integers: the order is the same, and a NaN
// is larger than all numbers. So a NaN always reaches the scale; a maximum of floats would lose it,
// depending on its place.
HWY_INLINE float MaxAbs(const float* x, std::int64_t count) {
  const DF d;
  VI max = hn::Zero(DI());
  for (std::int64_t i = 0; i < count; i += kLanes) {
    max = hn::Max(max, hn::BitCast(DI(), hn::Abs(hn::LoadU(d, x + i))));
  }
  return hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(DI(), max)));
}

// Quantises kCount inputs and returns the sum of the values. Writes zeros if the inverse is 0.
template <int kCount, int kDigits = 1>
HWY_INLINE std::int32_t Round(const float* x, float inverse_scale, Value* values) {
  if (inverse_scale == 0.0f) {
    for (int digit = 0; digit < kDigits; ++digit) {
      std::fill_n(values + digit * kBlock, kCount, Value{0});
    }
    return 0;
  }
  const DF d;
  VI sum = hn::Zero(DI());
  for (int i = 0; i < kCount; i += kLanes) {
    const VF scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse_scale));
    const VI rounded = hn::NearestInt(scaled);
    sum = hn::Add(sum, rounded);
    StoreInputs<kDigits>(rounded, values + i);
  }
  return hn::GetLane(hn::SumOfLanes(DI(), sum));
}

// 1 / scale, or 0, which makes all values zero. It is 0 for inputs so small that the inverse would
// not be finite, and for a span with a NaN or an infinity, which its scale carries on.
HWY_INLINE float Inverse(float scale) {
  using Limits = std::numeric_limits<float>;
  return scale >= Limits::min() && scale <= Limits::max() ? 1.0f / scale : 0.0f;
}

// A token's place in its tile, and the tile's.
struct Place {
  std::int64_t begin;  // the tile's first token
  std::int64_t size;   // its tokens
  std::int64_t at;     // the token's index in it
};

// 32 inputs: `block` counts those of the token, `blocks` those of its chunk.
template <int kDigits>
void Quantize32(const float* x, std::int64_t block, const Place& place, const QuantizedX& out) {
  const std::int64_t chunk = block / kChunkBlocks;
  const std::int64_t spot = chunk * kChunkBlocks * out.tokens +
                            place.begin * BlocksOf(out.inputs, chunk) +
                            block % kChunkBlocks * place.size + place.at;
  Value* const values = reinterpret_cast<Value*>(out.values) + spot * kDigits * kBlock;
  const float scale = MaxAbs(x, kBlock) / 127.0f;
  const std::int32_t sum = Round<kBlock, kDigits>(x, Inverse(scale), values);
  out.scales[spot] = scale;
  out.corrections[spot] = kSumStart - 128 * sum;
  out.sums[spot] = scale * static_cast<float>(sum);
}

// 32 inputs, as two halves.
void Quantize16(const float* x, std::int64_t block, const Place& place, const QuantizedX& out) {
  constexpr std::int64_t kHalf = kBlock / 2;
  const std::int64_t chunk = block / kChunkBlocks;
  const std::int64_t before =
      chunk * kChunkBlocks * out.tokens + place.begin * BlocksOf(out.inputs, chunk);
  const std::int64_t b = block % kChunkBlocks;
  Value* const values =
      reinterpret_cast<Value*>(out.values) + (before + b * place.size + place.at) * kBlock;
  for (std::int64_t half = 0; half < 2; ++half) {
    const std::int64_t spot = 2 * before + (2 * b + half) * place.size + place.at;
    const float scale = MaxAbs(x + half * kHalf, kHalf) / 127.0f;
    out.scales[spot] = scale;
    out.corrections[spot] =
        -128 * Round<kHalf>(x + half * kHalf, Inverse(scale), values + half * kHalf);
  }
}

template <int kDigits>
void Quantize256(const float* x, std::int64_t chunk, const Place& place, const QuantizedX& out) {
  const float scale = MaxAbs(x, kChunk) / 127.0f;
  const float inverse = Inverse(scale);
  const std::int64_t before = chunk * out.tokens + place.begin;  // in chunks of a token
  out.scales[before + place.at] = scale;
  for (std::int64_t b = 0; b < kChunkBlocks; ++b) {
    constexpr std::int64_t kHalf = kBlock / 2;
    const std::int64_t spot = before * kChunkBlocks + b * place.size + place.at;
    Value* const values = reinterpret_cast<Value*>(out.values) + spot * kDigits * kBlock;
    std::int32_t sum = 0;
    for (std::int64_t half = 0; half < 2; ++half) {
      const std::int32_t part =
          Round<kHalf, kDigits>(x + b * kBlock + half * kHalf, inverse, values + half * kHalf);
      out.corrections[before * 2 * kChunkBlocks + (2 * b + half) * place.size + place.at] =
          -128 * part;
      sum += part;
    }
    out.sums[spot] = static_cast<float>(sum);
  }
}

void QuantizeToken(const float* x, std::int64_t token, const QuantizedX& out) {
  const TokenTiles tiles(out.tokens, TokensOfTile(out.tokens, MostTileTokens(out.tokens)));
  const std::int64_t tile = tiles.TileOf(token);
  const Place place{tiles.Begin(tile), tiles.Size(tile), token - tiles.Begin(tile)};
  constexpr int kDigits = DigitsOf({kAnyByte});
  const bool has_digits = IsForBytes(out.kind) && ByteProductsInUse() == ByteProducts::kOfTarget;
  if (IsPer256(out.kind)) {
    for (std::int64_t c = 0; c < out.inputs / kChunk; ++c) {
      if (has_digits) {
        Quantize256<kDigits>(x + c * kChunk, c, place, out);
      } else {
        Quantize256<1>(x + c * kChunk, c, place, out);
      }
    }
    return;
  }
  for (std::int64_t b = 0; b < out.inputs / kBlock; ++b) {
    if (out.kind == InputScales::kPer16) {
      Quantize16(x + b * kBlock, b, place, out);
    } else if (has_digits) {
      Quantize32<kDigits>(x + b * kBlock, b, place, out);
    } else {
      Quantize32<1>(x + b * kBlock, b, place, out);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu::block {
namespace {

struct Sizes {
  std::int64_t values;
  std::int64_t scales;
  std::int64_t corrections;
  std::int64_t sums;
};

constexpr std::int64_t Aligned(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

Sizes SizesOf(const QuantizedX& x) {
  const std::int64_t count = x.tokens * x.inputs;
  const bool per_256 = IsPer256(x.kind);
  const std::int64_t block = x.kind == InputScales::kPer16 ? kBlock / 2 : kBlock;
  return {Aligned(count * QuantizedX::kMaxValueBytes),
          Aligned(count / (per_256 ? kChunk : block) * 4),
          Aligned(count / (per_256 ? kBlock / 2 : block) * 4), Aligned(count / kBlock * 4)};
}

}  // namespace

std::int64_t QuantizedX::Bytes() const {
  const Sizes sizes = SizesOf(*this);
  return sizes.values + sizes.scales + sizes.corrections + sizes.sums;
}

void QuantizedX::Place(std::byte* base) {
  const Sizes sizes = SizesOf(*this);
  values = base;
  scales = reinterpret_cast<float*>(base += sizes.values);
  corrections = reinterpret_cast<std::int32_t*>(base += sizes.scales);
  sums = reinterpret_cast<float*>(base + sizes.corrections);
}

HWY_EXPORT(QuantizeToken);

void QuantizeToken(const float* x, std::int64_t token, const QuantizedX& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeToken)(x, token, out);
}

}  // namespace kvcache::cpu::block
#endif  // HWY_ONCE
