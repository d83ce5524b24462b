// The weights of values of block types, as integers: the first three steps of
// block/values-inl.h, for every target.
//
// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WEIGHTS_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WEIGHTS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WEIGHTS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/common/block_codes-inl.h"
#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/simd/highway-inl.h"
#include "backend/cpu/simd/simd-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

inline constexpr float kMaxWeight = 127 * 256;

// Tiles of one head's values.
struct ValueTiles {
  const std::uint8_t* head;
  std::int64_t v_dim;
  std::uint32_t offset;     // of the codes (CodeOffset)
  SplitPrefetch* prefetch;  // null if the values are in a workspace
};

// The tiles with cells that any of R rows sees, in order of position. Lanes are a tile's cells.
template <int R>
struct WeightedTiles {
  float* weights;   // [count][R][16]: 0 where a row does not see the cell
  float* products;  // [count][R][16]: weights × a block's scales; then their integers
  int count = 0;
  const std::uint8_t* tiles[kSplitPositions];  // no more than there are positions

  explicit WeightedTiles(float* workspace)
      : weights(workspace), products(workspace + std::int64_t{kSplitPositions} * R * kCellTile) {}

  float* Products(int tile, int row) const { return products + (tile * R + row) * kCellTile; }
};

// --- Weights of visible cells

// Copies one row's weights of a tile; 0 outside `seen`. `position` is that of lane 0.
HWY_INLINE void CopyWeights(const float* weights, int position, RowRange seen, float* to) {
  const DF d;
  if (position >= seen.begin && position + kCellTile <= seen.end) {
    KVCACHE_UNROLL
    for (int lane = 0; lane < kCellTile; lane += kLanes) {
      hn::Store(hn::LoadU(d, weights + position + lane), d, to + lane);
    }
    return;
  }
  for (int lane = 0; lane < kCellTile; ++lane) {
    const int at = position + lane;
    to[lane] = at >= seen.begin && at < seen.end ? weights[at] : 0.0f;
  }
}

template <DType kType, int R>
void GatherWeights(const ValueTiles& values, const WeightedRows& rows, WeightedTiles<R>& to) {
  RowRange any{kSplitPositions, 0};
  for (const RowRange& range : rows.ranges) {
    if (range.empty()) continue;
    any = {std::min(any.begin, range.begin), std::max(any.end, range.end)};
  }
  for (const Segment& segment : rows.segments) {
    const RowRange part{std::max(any.begin, segment.begin), std::min(any.end, segment.end)};
    if (part.empty()) continue;
    RowRange seen[R];
    for (int r = 0; r < R; ++r) {
      const RowRange& range = rows.ranges[static_cast<std::size_t>(r)];
      seen[r] = {std::max(range.begin, part.begin), std::min(range.end, part.end)};
    }
    const std::int64_t cell = std::int64_t{segment.cell} + (part.begin - segment.begin);
    const std::uint8_t* tile = values.head + BlockTile(kType, values.v_dim, cell);
    for (int position = part.begin - static_cast<int>(cell % kCellTile); position < part.end;
         position += kCellTile, tile += BlockTileBytes(kType, values.v_dim)) {
      for (int r = 0; r < R; ++r) {
        CopyWeights(rows.weights + r * kScoreStride, position, seen[r],
                    to.weights + (to.count * R + r) * kCellTile);
      }
      to.tiles[to.count++] = tile;
    }
  }
}

// --- Weights as integers

// Multiplies the weights by block b's scales and sets most[r] to the largest magnitude. With kMasks
// the product of a weight of 0 is 0, even if the scale is not finite.
template <DType kType, int R, Stream kFrom, bool kMasks>
HWY_INLINE void MultiplyBy(const ValueTiles& values, const WeightedTiles<R>& tiles, std::int64_t b,
                           float (&max)[R]) {
  const DF d;
  Largest largest[R];
  for (int t = 0; t < tiles.count; ++t) {
    if (kFrom == Stream::kMemory) values.prefetch->Advance<PrefetchRate<kType>::kScales>();
    KVCACHE_UNROLL
    for (int lane = 0; lane < kCellTile; lane += kLanes) {
      const std::uint8_t* const scales = tiles.tiles[t] + BlockScale(kType, values.v_dim, b, lane);
      const VF scale = WidenF16(d, reinterpret_cast<const std::uint16_t*>(scales));
      KVCACHE_UNROLL
      for (int r = 0; r < R; ++r) {
        const VF weight = hn::Load(d, tiles.weights + (t * R + r) * kCellTile + lane);
        VF product = hn::Mul(weight, scale);
        if (kMasks) product = hn::IfThenElseZero(hn::Ne(weight, hn::Zero(d)), product);
        largest[r].Add(product);
        hn::Store(product, d, tiles.Products(t, r) + lane);
      }
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) max[r] = largest[r].Get();
}

// Multiplies the weights by block b's scales. The product of a weight of 0 is 0: products are masked
// if one of them is not finite, which is rare.
template <DType kType, int R, Stream kFrom>
HWY_INLINE void MultiplyScales(const ValueTiles& values, const WeightedTiles<R>& tiles,
                               std::int64_t b, Quantizer (&units)[R]) {
  float max[R];
  MultiplyBy<kType, R, kFrom, false>(values, tiles, b, max);
  bool finite = true;
  for (int r = 0; r < R; ++r) finite = finite && max[r] <= std::numeric_limits<float>::max();
  if (!finite) MultiplyBy<kType, R, Stream::kWorkspace, true>(values, tiles, b, max);
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) units[r] = Quantizer::Of(max[r], kMaxWeight);
}

// The float 1.5 · 2^23 + i has the small integer i in its lowest bits, so adding this constant
// rounds a float to an integer.
inline constexpr float kIntegers = 12582912.0f;

using VWeight = hn::Vec<hn::RebindToSigned<DF>>;

#if HWY_TARGET == HWY_AVX3_DL

// A tile's integers of a row: for each four cells their low digits, then their high digits. The
// second byte of (integer + 128) is the high digit.
inline constexpr float kIntegersBegin = kIntegers + 128.0f;
inline constexpr int kCodeFloats = kLanes;  // the size of a stored vector of integers

HWY_INLINE void StoreCodes(VWeight codes, float* to) {
  const __m512i digits = _mm512_xor_si512(codes.raw, _mm512_set1_epi32(128));
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 2, 2, 2, 2, 2, 2, 2));
  _mm512_store_si512(to, _mm512_shuffle_epi8(digits, order));
}

#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// A tile's integers of a row: for each four cells those of cells 0 and 2, then of 1 and 3, 16 bits
// each. They are the lowest bits of the floats.
inline constexpr float kIntegersBegin = kIntegers;
inline constexpr int kCodeFloats = kLanes;  // the size of a stored vector of integers

HWY_INLINE void StoreCodes(VWeight codes, float* to) {
  using D8 = hn::Repartition<std::uint8_t, DF>;
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 1, 8, 9, 4, 5, 12, 13,
                                                          0, 1, 8, 9, 4, 5, 12, 13};
  const auto order = hn::LoadDup128(D8(), kOrder);
  hn::Store(hn::BitCast(DF(), hn::TableLookupBytes(hn::BitCast(D8(), codes), order)), DF(), to);
}

#else

// A tile's integers of a row: 16 bits each, in half of the memory of the products.
inline constexpr float kIntegersBegin = kIntegers;
inline constexpr int kCodeFloats = kLanes / 2;  // the size of a stored vector of integers

HWY_INLINE void StoreCodes(VWeight codes, float* to) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::int16_t, DF> d16;
  const VWeight integers = hn::Sub(codes, hn::BitCast(di, hn::Set(DF(), kIntegersBegin)));
  hn::StoreU(hn::DemoteTo(d16, integers), d16, reinterpret_cast<std::int16_t*>(to));
}

#endif

// How the integers of a row are stored.
struct TargetCodes {
  static constexpr float kBegin = kIntegersBegin;
  static constexpr int kFloats = kCodeFloats;
  static HWY_INLINE void Store(VWeight codes, float* to) { StoreCodes(codes, to); }
};

#if HWY_ARCH_ARM_A64
// As digits, for the products of four bytes: for each four cells their low digits, then their high digits.
struct DigitCodes {
  static constexpr float kBegin = kIntegers + 128.0f;
  static constexpr int kFloats = kLanes / 2;
  static HWY_INLINE void Store(VWeight codes, float* to) {
    alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13};
    const uint8x16_t digits = vreinterpretq_u8_s32(veorq_s32(codes.raw, vdupq_n_s32(128)));
    vst1_u8(reinterpret_cast<std::uint8_t*>(to), vqtbl1_u8(digits, vld1_u8(kOrder)));
  }
};
#endif

// The sum of all lanes, modulo 2^32: where a product is NaN, lanes may hold anything.
HWY_INLINE std::uint32_t WrappingSum(VWeight codes) {
  HWY_ALIGN std::int32_t lanes[kLanes];
  hn::Store(codes, hn::RebindToSigned<DF>(), lanes);
  std::uint32_t sum = 0;
  for (const std::int32_t lane : lanes) sum += static_cast<std::uint32_t>(lane);
  return sum;
}

// Replaces the products by integers and sets sums[r] to their sum.
template <class Codes, DType kType, int R, Stream kFrom>
HWY_INLINE void QuantizeProducts(const ValueTiles& values, const WeightedTiles<R>& tiles,
                                 const Quantizer (&units)[R], std::uint32_t (&sums)[R]) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const VF begin = hn::Set(d, Codes::kBegin);
  VF inverse[R];
  VWeight sum[R];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    inverse[r] = hn::Set(d, units[r].inverse);
    sum[r] = hn::Zero(di);
  }
  for (int t = 0; t < tiles.count; ++t) {
    if (kFrom == Stream::kMemory) values.prefetch->Advance<PrefetchRate<kType>::kCodes>();
    KVCACHE_UNROLL
    for (int r = 0; r < R; ++r) {
      float* const products = tiles.Products(t, r);
      // Integers are no longer than products, so no product is overwritten before it is read.
      KVCACHE_UNROLL
      for (int v = 0; v < kRegs; ++v) {
        const VF product = hn::Load(d, products + v * kLanes);
        const VWeight codes = hn::BitCast(di, hn::MulAdd(product, inverse[r], begin));
        sum[r] = hn::Add(sum[r], codes);
        Codes::Store(codes, products + v * Codes::kFloats);
      }
    }
  }
  const auto cells = static_cast<std::uint32_t>(tiles.count * kCellTile);
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    sums[r] = WrappingSum(sum[r]) - cells * std::bit_cast<std::uint32_t>(Codes::kBegin);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
