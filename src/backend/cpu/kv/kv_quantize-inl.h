// Rounds what the cache stores in block types (q8_0, q4_0), keys and values alike, for every target:
// CodesOf rounds, QuantizeBlock chooses the scale. Also writes the codes of a cell into its tile
// (kv_blocks.h) and reads keys back.
//
// Codes and scales have the bits of Quantize (tensor/quantize_blocks.cc), which defines them, and
// kv_block_store_test.cc compares the two: change both. Quantize refuses values that are not
// finite. Here such a block becomes 32 NaNs, with codes of zero and a scale of NaN, so that the
// fault shows in every result that reads it.
//
// A latent (kv_blocks.h) is rounded alike, with one scale for the blocks of its value.
//
// Queries are rounded elsewhere, to even: attention/block/keys-inl.h.
//
// Only the cell's own bytes are written, never those of its neighbours in the tile.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_KV_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_KV_QUANTIZE_INL_H_
#undef KVCACHE_BACKEND_CPU_KV_QUANTIZE_INL_H_
#else
#define KVCACHE_BACKEND_CPU_KV_QUANTIZE_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "backend/cpu/common/block_codes-inl.h"
#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/common/kv_convert-inl.h"
#include "backend/cpu/simd/simd-inl.h"
#include "tensor/block_codec.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// ---- One block of 32 values

using DCode = hn::RebindToSigned<DF>;
using VCode = hn::Vec<DCode>;

HWY_INLINE float LargestMagnitude(const float* x, std::int64_t count = kKvBlock) {
  Largest max;
  for (std::int64_t i = 0; i < count; i += kLanes) max.Add(hn::LoadU(DF(), x + i));
  return max.Get();
}

// The first value of the given magnitude; +0 if all values are zero.
HWY_INLINE float FirstOfMagnitude(const float* x, float magnitude) {
  std::intptr_t first = 0;
  KVCACHE_UNROLL
  for (int i = static_cast<int>(kKvBlock) - kLanes; i >= 0; i -= kLanes) {
    const auto equal = hn::Eq(hn::Abs(hn::LoadU(DF(), x + i)), hn::Set(DF(), magnitude));
    const std::intptr_t at = hn::FindFirstTrue(DF(), equal);
    first = at >= 0 ? i + at : first;
  }
  return magnitude == 0.0f ? 0.0f : x[first];
}

// The same integers as codec::RoundHalfAway. The magnitude of the rest after truncation is below 1,
// so twice the rest truncates to -1, 0 or 1: the missing step.
HWY_INLINE VCode RoundHalfAway(VF x) {
  const VCode whole = hn::ConvertTo(DCode(), x);
  const VF rest = hn::Sub(x, hn::ConvertTo(DF(), whole));
  return hn::Add(whole, hn::ConvertTo(DCode(), hn::Add(rest, rest)));
}

template <DType kType>
HWY_INLINE VCode CodesOf(const float* x, float inverse) {
  const VF scaled = hn::Mul(hn::LoadU(DF(), x), hn::Set(DF(), inverse));
  if constexpr (kType == DType::kQ8_0) {
    return RoundHalfAway(scaled);
  } else {
    const VCode shifted = hn::ConvertTo(DCode(), hn::Add(scaled, hn::Set(DF(), 8.5f)));
    return hn::Min(shifted, hn::Set(DCode(), 15));
  }
}

// Writes the CodeBytes(kType, kKvBlock) codes of a block in the order of their values; for q4_0 a
// byte holds the values i and 16 + i. Returns the scale, not yet rounded to f16. `magnitude` is the largest
// of the values, for q8_0 of those that share the scale.
template <DType kType>
HWY_INLINE float QuantizeBlock(const float* x, float magnitude, std::uint8_t* codes) {
  constexpr bool kBytes = kType == DType::kQ8_0;
  if (!(magnitude <= std::numeric_limits<float>::max())) {
    std::memset(codes, kBytes ? 0 : 0x88, static_cast<std::size_t>(CodeBytes(kType, kKvBlock)));
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = kBytes ? magnitude / 127.0f : FirstOfMagnitude(x, magnitude) / -8.0f;
  const float inverse = codec::InverseOf(scale);
  constexpr int kHalf = static_cast<int>(kKvBlock) / 2;
  KVCACHE_UNROLL
  for (int i = 0; i < (kBytes ? 2 * kHalf : kHalf); i += kLanes) {
    const VCode low = CodesOf<kType>(x + i, inverse);
    if constexpr (kBytes) {
      const hn::Rebind<std::int8_t, DCode> d8;
      hn::StoreU(hn::DemoteTo(d8, low), d8, reinterpret_cast<std::int8_t*>(codes) + i);
    } else {
      const hn::Rebind<std::uint8_t, DCode> d8;
      const VCode high = CodesOf<kType>(x + kHalf + i, inverse);
      hn::StoreU(hn::DemoteTo(d8, hn::Or(low, hn::ShiftLeft<4>(high))), d8, codes + i);
    }
  }
  return scale;
}

template <class V>
HWY_INLINE void StoreScaled(V codes, float scale, float* x) {
  hn::StoreU(hn::Mul(hn::ConvertTo(DF(), codes), hn::Set(DF(), scale)), DF(), x);
}

// Writes the block's 32 values. Each product is exact: 11 bits times 8.
template <DType kType>
HWY_INLINE void DequantizeBlock(const std::uint8_t* codes, float scale, float* x) {
  if constexpr (kType == DType::kQ8_0) {
    const hn::Rebind<std::int8_t, DCode> d8;
    KVCACHE_UNROLL
    for (int i = 0; i < kKvBlock; i += kLanes) {
      const auto code = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(codes) + i);
      StoreScaled(hn::PromoteTo(DCode(), code), scale, x + i);
    }
  } else {
    const hn::Rebind<std::uint8_t, DCode> d8;
    const VCode eight = hn::Set(DCode(), 8);
    KVCACHE_UNROLL
    for (int i = 0; i < kKvBlock / 2; i += kLanes) {
      const VCode both = hn::PromoteTo(DCode(), hn::LoadU(d8, codes + i));
      const VCode low = hn::And(both, hn::Set(DCode(), 15));
      StoreScaled(hn::Sub(low, eight), scale, x + i);
      StoreScaled(hn::Sub(hn::ShiftRight<4>(both), eight), scale, x + kKvBlock / 2 + i);
    }
  }
}

HWY_INLINE void StoreBlockScale(float scale, std::byte* at) {
  const hn::CappedTag<float, 1> d1;
  NarrowToF16(d1, hn::Set(d1, scale), reinterpret_cast<std::uint16_t*>(at));
}

HWY_INLINE float LoadBlockScale(const std::byte* at) {
  const hn::CappedTag<float, 1> d1;
  return hn::GetLane(WidenF16(d1, reinterpret_cast<const std::uint16_t*>(at)));
}

// ---- One cell of a tile, `lane`

// The difference between four codes of Quantize and the same codes in a tile, by exclusive or: q8_0
// is signed there and has an offset of 128 in a tile.
template <DType kType>
inline constexpr std::uint32_t kCodeFlip = kType == DType::kQ8_0 ? 0x80808080u : 0u;

// Quantises and stores a key; its first `shared` blocks share a scale, and those before `first` stay as they are.
// REQUIRES: `row` is Hadamard-transformed.
template <DType kType>
void StoreBlockKey(const float* row, std::int64_t k_dim, std::byte* tile, std::int64_t lane,
                   std::int64_t shared = 0, std::int64_t first = 0) {
  constexpr std::int64_t kLines = CodeBytes(kType, kKvBlock) / 4;
  const float of_shared = first < shared ? LargestMagnitude(row, shared * kKvBlock) : 0.0f;
  for (std::int64_t b = first; b < k_dim / kKvBlock; ++b) {
    alignas(16) std::uint8_t codes[kKvBlock];
    const float* const block = row + b * kKvBlock;
    const float scale =
        QuantizeBlock<kType>(block, b < shared ? of_shared : LargestMagnitude(block), codes);
    KVCACHE_UNROLL
    for (std::int64_t line = 0; line < kLines; ++line) {
      std::uint32_t four;
      std::memcpy(&four, codes + 4 * line, 4);
      four ^= kCodeFlip<kType>;
      std::memcpy(tile + KeyCodes(b * kLines + line, lane), &four, 4);
    }
    StoreBlockScale(scale, tile + BlockScale(kType, k_dim, b, lane));
  }
}

template <DType kType>
void LoadBlockKey(const std::byte* tile, std::int64_t lane, std::int64_t k_dim, float* row) {
  constexpr std::int64_t kLines = CodeBytes(kType, kKvBlock) / 4;
  for (std::int64_t b = 0; b < k_dim / kKvBlock; ++b) {
    alignas(16) std::uint8_t codes[kKvBlock];
    KVCACHE_UNROLL
    for (std::int64_t line = 0; line < kLines; ++line) {
      std::uint32_t four;
      std::memcpy(&four, tile + KeyCodes(b * kLines + line, lane), 4);
      four ^= kCodeFlip<kType>;
      std::memcpy(codes + 4 * line, &four, 4);
    }
    const float scale = LoadBlockScale(tile + BlockScale(kType, k_dim, b, lane));
    DequantizeBlock<kType>(codes, scale, row + b * kKvBlock);
  }
}

template <DType kType>
void StoreBlockValue(const float* row, std::int64_t v_dim, std::byte* tile, std::int64_t lane) {
  constexpr std::int64_t kCodes = CodeBytes(kType, kKvBlock);
  constexpr auto kFlip = static_cast<std::uint8_t>(kCodeFlip<kType>);
  for (std::int64_t b = 0; b < v_dim / kKvBlock; ++b) {
    alignas(16) std::uint8_t codes[kKvBlock];
    const float* const block = row + b * kKvBlock;
    const float scale = QuantizeBlock<kType>(block, LargestMagnitude(block), codes);
    KVCACHE_UNROLL
    for (std::int64_t i = 0; i < kCodes; ++i) {
      tile[ValueCode(kType, b, i, lane)] = std::byte{static_cast<std::uint8_t>(codes[i] ^ kFlip)};
    }
    StoreBlockScale(scale, tile + BlockScale(kType, v_dim, b, lane));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
