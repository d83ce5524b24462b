// The product of a single token with panels, for every target. A token needs every weight once, so
// unpacked bytes stay in registers.
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_ONE_TOKEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_ONE_TOKEN_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_ONE_TOKEN_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_ONE_TOKEN_INL_H_
#endif

#include <algorithm>

#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/linear/block/tile-inl.h"
#include "backend/cpu/linear/block/unpack-inl.h"
#include "backend/cpu/simd/simd-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Writes the rows of a panel that exist.
HWY_INLINE void StoreRows(const float* sums, std::int64_t rows, float* y) {
  std::copy_n(sums, std::min(rows, kPanelRows), y);
}

using PanelSums = VF[kPanelRegs];

// Whether a product of one token multiplies its sums of 16 bits by the rows' integer scales while it widens them:
// float(sum × scale) · d is the exact product that float(sum) · (d · scale) is. A start is added to the sums of 16
// bits then, and fits into them.
template <class Format>
inline constexpr bool kScalesSums = [] {
  constexpr ProductKind kKind = Format::kProduct;
  constexpr int kGroups = GroupsOf(kKind.chain);
  static_assert(!IsPer256(kKind.chain) || SumStartOf(kKind) == 0);
  constexpr bool kFits = kKind.bias == 0 || (kGroups == 4 && kKind.bias <= 16);
  constexpr bool kHasSmall = requires(const typename Format::Head& head) {
    head.SmallScales(0);
  };
  return kHasSmall && kFits && CanScaleSums(kKind.bytes, kGroups);
}();

// Adds the kPart-th inputs that share a scale, of the 32 inputs `b` of a chunk, which `lines` hold. The
// bytes stay in registers.
template <class Format, int kPart>
HWY_INLINE void AddLines(const std::uint8_t* lines, const typename Format::Head& head,
                         const TileInput& x, std::int64_t b, PanelSums& sum) {
  constexpr ProductKind kKind = Format::kProduct;
  constexpr int kGroups = GroupsOf(kKind.chain);
  const std::int64_t i = b * PartsOf(kKind.chain) + kPart;
  const DF d;
  constexpr bool kScaled = kScalesSums<Format>;
  constexpr bool kPairsOfBits = requires {
    requires Format::kIsPairsOfBits;
  };
  OneTokenDots<OneTokenKind{kKind.bytes, InitOf(kKind), kGroups, kPairsOfBits, kScaled}> dots(
      x.values + i * 4 * kGroups * DigitsOf(kKind.bytes), StartOf<kKind>(x, i, 0, 1));
  if constexpr (kScaled) {
    dots.SetScales(head.SmallScales(i));
    Format::template Unpack<kPart>(lines, dots);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      sum[r] = hn::MulAdd(hn::ConvertTo(d, dots.Dot(r)), head.Unit().r[r], sum[r]);
    }
  } else {
    Format::template Unpack<kPart>(lines, dots);
    const RowFactors w_scale = head.Scales(i);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      if constexpr (!IsPer256(kKind.chain)) {
        const VF scaled = SumScales(w_scale.r[r]).template Times<SumStartOf(kKind)>(dots.Dot(r));
        sum[r] = hn::MulAdd(scaled, hn::Set(d, x.scales[i]), sum[r]);
      } else {
        sum[r] = hn::MulAdd(hn::ConvertTo(d, dots.Dot(r)), w_scale.r[r], sum[r]);
      }
    }
  }
  if constexpr (HasMinima(kKind.chain)) {
    const RowFactors minima = head.Minima(i);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      sum[r] = hn::MulAdd(minima.r[r], SumOf<kKind.chain>(x, i, 0, 1), sum[r]);
    }
  }
}

// Multiplies a single token with a panel. Memory accesses, unpacking and products overlap.
template <class Format>
void MultiplyOneToken(const Product& product, std::int64_t panel) {
  constexpr Chain kChain = Format::kProduct.chain;
  constexpr std::int64_t kBytes = LayoutOf(Format::kType).body_bytes;
  const std::int64_t inputs = product.x.inputs;
  const auto* chunk_at = reinterpret_cast<const std::uint8_t*>(product.panels) +
                         panel * PanelBytes(product.dtype, inputs);
  const DF d;
  PanelSums y;
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) y[r] = hn::Zero(d);
  for (std::int64_t chunk = 0; chunk < Chunks(inputs); ++chunk) {
    const std::int64_t blocks = BlocksOf(inputs, chunk);
    const TileInput x = InputOf<Format::kProduct>(product.x, chunk, 0);
    PrefetchAhead<HeadBytes(Format::kType, kChunkBlocks)>(chunk_at);
    const typename Format::Head head(chunk_at);
    const std::uint8_t* const lines = chunk_at + HeadBytes(Format::kType, blocks);
    PanelSums sum;
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) sum[r] = IsPer256(kChain) ? hn::Zero(d) : y[r];
    for (std::int64_t b = 0; b < blocks; ++b) {
      PrefetchAhead<kBytes>(lines + b * kBytes);
      AddLines<Format, 0>(lines + b * kBytes, head, x, b, sum);
      if constexpr (PartsOf(kChain) == 2) AddLines<Format, 1>(lines + b * kBytes, head, x, b, sum);
    }
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      y[r] = IsPer256(kChain) ? hn::MulAdd(sum[r], hn::Set(d, x.scales[0]), y[r]) : sum[r];
    }
    chunk_at += ChunkBytes(Format::kType, blocks);
  }
  HWY_ALIGN float rows[kPanelRows];
  for (int r = 0; r < kPanelRegs; ++r) hn::Store(y[r], d, rows + r * kLanes);
  StoreRows(rows, product.outputs - panel * kPanelRows, product.y + panel * kPanelRows);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
