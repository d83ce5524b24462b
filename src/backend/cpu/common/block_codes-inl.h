// Helpers of attention's integer arithmetic, for every target: floats as small integers times one
// unit, and the codes of block types as bytes.

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

#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/simd/highway-inl.h"
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// The largest magnitude of the floats added so far. It compares their bits as integers: the order
// is the same, and infinities and NaNs are larger than all numbers.
class Largest {
 public:
  HWY_INLINE Largest() : max_(hn::Zero(DI())) {}
  HWY_INLINE void Add(VF x) { max_ = hn::Max(max_, hn::BitCast(DI(), hn::Abs(x))); }

  HWY_INLINE float Get() const {
    return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(DI(), max_)));
  }

 private:
  using DI = hn::RebindToSigned<DF>;
  hn::Vec<DI> max_;
};

// Represents floats as integers times a unit. The inverse is 0 if that is impossible: either the
// unit is NaN because a float is not finite, which makes all results NaN, or the unit is too small
// to have an inverse, and all integers are 0.
struct Quantizer {
  float unit = 0.0f;
  float inverse = 0.0f;

  // For floats of magnitude up to `max`, as integers of magnitude up to `levels`.
  static HWY_INLINE Quantizer Of(float max, float levels) {
    using Limits = std::numeric_limits<float>;
    const float unit = max / levels;
    if (!(unit <= Limits::max())) return {Limits::quiet_NaN(), 0.0f};
    return {unit, unit >= Limits::min() ? 1.0f / unit : 0.0f};
  }
};

// The offset of a type's codes: code = integer + offset.
constexpr std::uint32_t CodeOffset(DType type) {
  return type == DType::kQ8_0 ? 128 : 8;
}

constexpr int MaxCode(DType type) {
  return type == DType::kQ8_0 ? 255 : 15;
}

#if HWY_TARGET != HWY_AVX3_DL

// The codes of one block of a tile, a byte each. For q4_0 they are unpacked into `unpacked`, first
// those of the lower nibbles, then those of the upper ones; for q8_0 the block itself is returned.
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
