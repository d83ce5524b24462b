// What attention's integer arithmetic shares, for every target: floats to small integers times one
// unit, and codes of block types as bytes.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_CODES_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_CODES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_CODES_INL_H_
#endif

#include <bit>
#include <cstdint>
#include <limits>

#include "backend/cpu/kv/kv_blocks.h"
#include "backend/cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// The largest magnitude of what was added. As integers, magnitudes are in the same order, and
// infinities and what is not a number are above all.
class Largest {
 public:
  HWY_INLINE Largest() : most_(hn::Zero(DI())) {}
  HWY_INLINE void Add(VF x) { most_ = hn::Max(most_, hn::BitCast(DI(), hn::Abs(x))); }

  HWY_INLINE float Get() const {
    return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(DI(), most_)));
  }

 private:
  using DI = hn::RebindToSigned<DF>;
  hn::Vec<DI> most_;
};

// Floats as integers times a unit. Where the inverse is 0 they have no integers: the unit is NaN,
// which says it for all of them, or too small to have an inverse, and they count as 0.
struct Quantiser {
  float unit = 0.0f;
  float inverse = 0.0f;

  // For magnitudes up to `most` as integers up to `levels`.
  static HWY_INLINE Quantiser Of(float most, float levels) {
    using Limits = std::numeric_limits<float>;
    const float unit = most / levels;
    if (!(unit <= Limits::max())) return {Limits::quiet_NaN(), 0.0f};
    return {unit, unit >= Limits::min() ? 1.0f / unit : 0.0f};
  }
};

// What a type's codes are more than the integers they stand for.
constexpr std::uint32_t CodeOffset(DType type) {
  return type == DType::kQ8_0 ? 128 : 8;
}

#if HWY_TARGET != HWY_AVX3_DL

// The codes of a block of one tile, a byte each. Of q4_0 what lower halves hold comes first.
template <DType kType>
HWY_INLINE const std::uint8_t* BlockCodes(const std::uint8_t* block, std::uint8_t* unpacked) {
  if constexpr (kType == DType::kQ8_0) return block;
  constexpr std::int64_t kHalf = kKvBlock / 2 * kCellTile;
  for (std::int64_t i = 0; i < kHalf; ++i) {
    unpacked[i] = block[i] & 15;
    unpacked[i + kHalf] = block[i] >> 4;
  }
  return unpacked;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
