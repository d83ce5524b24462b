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
  float* weights;  // [count][R][16]: 0 where a row does not see the cell
  float* codes;    // [count][R][16]: the integers of weights × a block's scales
  int count = 0;
  const std::uint8_t* tiles[kSplitPositions];  // no more than there are positions

  explicit WeightedTiles(float* workspace)
      : weights(workspace), codes(workspace + std::int64_t{kSplitPositions} * R * kCellTile) {}

  float* Weights(int tile, int row) const { return weights + (tile * R + row) * kCellTile; }
  float* Codes(int tile, int row) const { return codes + (tile * R + row) * kCellTile; }
};

// --- Weights of visible cells

// Copies one row's weights of `count` tiles, which are `stride` floats apart in `to`; 0 outside `seen`. `position` is
// that of lane 0.
HWY_INLINE void CopyWeights(const float* weights, int position, int count, RowRange seen, float* to,
                            std::int64_t stride) {
  const DF d;
  for (int t = 0; t < count; ++t, position += kCellTile, to += stride) {
    if (position >= seen.begin && position + kCellTile <= seen.end) {
      KVCACHE_UNROLL
      for (int lane = 0; lane < kCellTile; lane += kLanes) {
        hn::Store(hn::LoadU(d, weights + position + lane), d, to + lane);
      }
      continue;
    }
    for (int lane = 0; lane < kCellTile; ++lane) {
      const int at = position + lane;
      to[lane] = at >= seen.begin && at < seen.end ? weights[at] : 0.0f;
    }
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
    const std::int64_t cell = std::int64_t{segment.cell} + (part.begin - segment.begin);
    const int position = part.begin - static_cast<int>(cell % kCellTile);
    const int count = (part.end - position + kCellTile - 1) / kCellTile;
    for (int r = 0; r < R; ++r) {
      const RowRange& range = rows.ranges[static_cast<std::size_t>(r)];
      const RowRange seen{std::max(range.begin, part.begin), std::min(range.end, part.end)};
      CopyWeights(rows.weights + r * kScoreStride, position, count, seen, to.Weights(to.count, r),
                  std::int64_t{R} * kCellTile);
    }
    const std::uint8_t* tile = values.head + BlockTile(kType, values.v_dim, cell);
    for (int t = 0; t < count; ++t, tile += BlockTileBytes(kType, values.v_dim)) {
      to.tiles[to.count++] = tile;
    }
  }
}

// --- Weights as integers

// The units of one block's integers, for R rows.
template <int R>
struct BlockUnits {
  Quantizer units[R];
  bool masks = false;  // whether a product is not finite, which is rare
};

// Vector `lane / kLanes` of the products of a row's weights in a tile and their scales. With kMasks the product of a
// weight of 0 is 0, even if the scale is not finite.
template <bool kMasks>
HWY_INLINE VF ProductsOf(const float* weights, int lane, VF scales) {
  const DF d;
  const VF weight = hn::Load(d, weights + lane);
  const VF product = hn::Mul(weight, scales);
  return kMasks ? hn::IfThenElseZero(hn::Ne(weight, hn::Zero(d)), product) : product;
}

template <DType kType>
HWY_INLINE VF ScalesOf(const ValueTiles& values, const std::uint8_t* tile, std::int64_t b,
                       int lane) {
  return WidenF16(DF(), reinterpret_cast<const std::uint16_t*>(
                            tile + BlockScale(kType, values.v_dim, b, lane)));
}

// Sets max[r] to the largest magnitude of the weights times block b's scales.
template <DType kType, int R, Stream kFrom, bool kMasks>
HWY_INLINE void LargestProducts(const ValueTiles& values, const WeightedTiles<R>& tiles,
                                std::int64_t b, float (&max)[R]) {
  Largest largest[R];
  for (int t = 0; t < tiles.count; ++t) {
    if (kFrom == Stream::kMemory) values.prefetch->Advance<PrefetchRate<kType>::kScales>();
    KVCACHE_UNROLL
    for (int lane = 0; lane < kCellTile; lane += kLanes) {
      const VF scales = ScalesOf<kType>(values, tiles.tiles[t], b, lane);
      KVCACHE_UNROLL
      for (int r = 0; r < R; ++r) {
        largest[r].Add(ProductsOf<kMasks>(tiles.Weights(t, r), lane, scales));
      }
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) max[r] = largest[r].Get();
}

template <DType kType, int R, Stream kFrom>
HWY_INLINE BlockUnits<R> FindUnits(const ValueTiles& values, const WeightedTiles<R>& tiles,
                                   std::int64_t b) {
  float max[R];
  LargestProducts<kType, R, kFrom, false>(values, tiles, b, max);
  BlockUnits<R> found;
  for (int r = 0; r < R; ++r) {
    found.masks = found.masks || !(max[r] <= std::numeric_limits<float>::max());
  }
  if (found.masks) LargestProducts<kType, R, Stream::kWorkspace, true>(values, tiles, b, max);
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) found.units[r] = Quantizer::Of(max[r], kMaxWeight);
  return found;
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

#if HWY_TARGET == HWY_AVX2
// The same integers, whose products AVX-VNNI multiplies and adds at once.
struct FusedCodes : TargetCodes {};
#elif HWY_ARCH_ARM_A64
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
  const hn::RebindToSigned<DF> di;
  if (HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128) {
    return static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(di, codes)));
  }
  HWY_ALIGN std::int32_t lanes[kLanes];
  hn::Store(codes, di, lanes);
  std::uint32_t sum = 0;
  for (const std::int32_t lane : lanes) sum += static_cast<std::uint32_t>(lane);
  return sum;
}

// Writes the integers of block b's products and sets sums[r] to their sum.
template <class Codes, DType kType, int R, Stream kFrom, bool kMasks>
HWY_INLINE void QuantizeWith(const ValueTiles& values, const WeightedTiles<R>& tiles,
                             std::int64_t b, const Quantizer (&units)[R],
                             std::uint32_t (&sums)[R]) {
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
    for (int v = 0; v < kRegs; ++v) {
      const VF scales = ScalesOf<kType>(values, tiles.tiles[t], b, v * kLanes);
      KVCACHE_UNROLL
      for (int r = 0; r < R; ++r) {
        const VF product = ProductsOf<kMasks>(tiles.Weights(t, r), v * kLanes, scales);
        const VWeight codes = hn::BitCast(di, hn::MulAdd(product, inverse[r], begin));
        sum[r] = hn::Add(sum[r], codes);
        Codes::Store(codes, tiles.Codes(t, r) + v * Codes::kFloats);
      }
    }
  }
  const auto cells = static_cast<std::uint32_t>(tiles.count * kCellTile);
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    sums[r] = WrappingSum(sum[r]) - cells * std::bit_cast<std::uint32_t>(Codes::kBegin);
  }
}

template <class Codes, DType kType, int R, Stream kFrom>
HWY_INLINE void QuantizeProducts(const ValueTiles& values, const WeightedTiles<R>& tiles,
                                 std::int64_t b, const BlockUnits<R>& of_block,
                                 std::uint32_t (&sums)[R]) {
  if (of_block.masks) {
    return QuantizeWith<Codes, kType, R, kFrom, true>(values, tiles, b, of_block.units, sums);
  }
  QuantizeWith<Codes, kType, R, kFrom, false>(values, tiles, b, of_block.units, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
