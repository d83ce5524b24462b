// The Hadamard transform of a head's key, or of a query for it, for every target. kv_blocks.h says
// why keys of block types are transformed.
//
// The matrix of size n = HadamardSize(dim) is orthonormal with entries ±1/√n; entry (i, j) is
// negative where i & j has an odd number of bits set. A row of more than n values is transformed n
// values at a time. The matrix is symmetric and its own inverse: a second transform restores the
// row, up to rounding.
//
// All targets use the same order of operations, and so have the same bits, except in NaNs: for
// h = 1, 2, 4, … n/2 each pair of values (a, b) at indices i and i + h (i & h == 0) becomes
// (a + b, a - b); at the end each value is multiplied by 1/√n, rounded to f32.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_HADAMARD_INL_H_
#undef KVCACHE_BACKEND_CPU_HADAMARD_INL_H_
#else
#define KVCACHE_BACKEND_CPU_HADAMARD_INL_H_
#endif

#include <bit>
#include <cstdint>

#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// Exchanges values kHalf lanes apart, within groups of 2 · kHalf lanes.
template <int kHalf>
HWY_INLINE VF SwapHalves(VF v) {
  if constexpr (kHalf == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kHalf == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kHalf == 4) {
    return hn::SwapAdjacentBlocks(v);
  } else {
    return hn::ConcatLowerUpper(DF(), v, v);
  }
}

// One step of the order above for pairs within a vector: partner + x, with x negated if its lane is
// the pair's second.
template <int kHalf>
HWY_INLINE VF HadamardPairs(VF v) {
  const hn::RebindToUnsigned<DF> du;
  const auto lane = hn::Iota(du, 0u);
  const auto second = hn::ShiftLeft<31 - std::countr_zero(static_cast<unsigned>(kHalf))>(
      hn::And(lane, hn::Set(du, static_cast<std::uint32_t>(kHalf))));
  return hn::Add(SwapHalves<kHalf>(v), hn::Xor(v, hn::BitCast(DF(), second)));
}

template <int kHalf = 1>
HWY_INLINE VF HadamardWithin(VF v) {
  if constexpr (kHalf >= kLanes) {
    return v;
  } else {
    return HadamardWithin<2 * kHalf>(HadamardPairs<kHalf>(v));
  }
}

// One step for pairs `half` values apart among `size` values. REQUIRES: half is a multiple of
// kLanes.
HWY_INLINE void HadamardApart(float* row, std::int64_t size, std::int64_t half) {
  for (std::int64_t begin = 0; begin < size; begin += 2 * half) {
    for (std::int64_t i = begin; i < begin + half; i += kLanes) {
      const VF a = hn::LoadU(DF(), row + i);
      const VF b = hn::LoadU(DF(), row + i + half);
      hn::StoreU(hn::Add(a, b), DF(), row + i);
      hn::StoreU(hn::Sub(a, b), DF(), row + i + half);
    }
  }
}

// 1/√n as f32. REQUIRES: n is a power of two.
constexpr float InverseRoot(std::int64_t n) {
  constexpr float kInverseRootOfTwo = 0x1.6a09e6p-1f;
  const int bits = std::countr_zero(static_cast<std::uint64_t>(n));
  const float whole = 1.0f / static_cast<float>(std::int64_t{1} << bits / 2);
  return bits % 2 == 0 ? whole : whole * kInverseRootOfTwo;
}

// Transforms row[0, dim) in place, `size` values at a time; `row` may be unaligned. REQUIRES: size is a power of
// two and at least kKvBlock, and divides dim.
inline void HadamardTransform(float* row, std::int64_t dim, std::int64_t size) {
  const VF factor = hn::Set(DF(), InverseRoot(size));
  for (float* part = row; part < row + dim; part += size) {
    for (std::int64_t i = 0; i < size; i += kLanes) {
      hn::StoreU(HadamardWithin(hn::LoadU(DF(), part + i)), DF(), part + i);
    }
    for (std::int64_t half = kLanes; half < size; half *= 2) HadamardApart(part, size, half);
    for (std::int64_t i = 0; i < size; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(DF(), part + i), factor), DF(), part + i);
    }
  }
}
inline void HadamardTransform(float* row, std::int64_t dim) {
  HadamardTransform(row, dim, HadamardSize(dim));
}

// Transforms a latent's or its query's k_dim values: the first v_dim and the others apart.
inline void TransformLatent(float* row, std::int64_t k_dim, std::int64_t v_dim) {
  HadamardTransform(row, v_dim, LatentHadamardSize(v_dim));
  if (k_dim > v_dim) HadamardTransform(row + v_dim, k_dim - v_dim);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
