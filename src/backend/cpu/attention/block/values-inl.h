// Weighted sums of values of block types for R rows, for every target. The sums are exact sums of
// integers, so their order does not matter.
//
// For one split with weights p_j and a block b with scales d_jb and codes c_ji:
//   w_j = p_j · d_jb, 0 where p_j is 0      u = max |w_j| / 32512
//   q_j = w_j · (1/u), one rounding to the nearest integer, to even
//   a_i = float(Σ_j q_j c_ji) · u
// Each q_j is split into two digits, q = 256 high + low with both from -128 to 127, so that dot
// products of bytes can take it; 32512 is the largest magnitude that leaves a margin for their
// rounding. The sums stay below 2^31.
//
// The work has four steps, each a pass over the tiles of the split:
//   GatherWeights      copies the weights of the visible cells, tile by tile
//   FindUnits          the largest magnitude of w_j per row, and u
//   QuantizeProducts   w_j again, and q_j
//   SumProducts        Σ_j q_j c_ji
//
// The values within latents (kv_blocks.h) have one scale in a cell, so w, u and q are those of all blocks and are made
// once. Their codes are those of the latents' tiles, in the layout of values (block/widen-inl.h).
//
// A position that a row does not see has a weight of 0 and adds nothing, whatever its codes are.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/block/weights-inl.h"
#include "backend/cpu/common/block_codes-inl.h"
#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/cpu_target.h"
#include "backend/cpu/simd/highway-inl.h"
#include "backend/cpu/simd/simd-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// The 16 values of half `half` of a block, for four cells.
template <DType kType>
HWY_INLINE __m512i ValueLine(const std::uint8_t* block, int quad, int half) {
  if constexpr (kType == DType::kQ8_0) {
    return _mm512_loadu_si512(block + (half * 4 + quad) * 64);
  } else {
    const __m512i both = _mm512_loadu_si512(block + quad * 64);
    const __m512i codes = half == 0 ? both : _mm512_srli_epi16(both, 4);
    return _mm512_and_si512(codes, _mm512_set1_epi8(15));
  }
}

HWY_INLINE __m512i FourWeights(const float* codes) {
  std::int32_t four;
  std::memcpy(&four, codes, 4);
  return _mm512_set1_epi32(four);
}

// sums[r] of block b for kRows rows from row `first`, as integers.
template <class /*Codes*/, DType kType, int R, int kRows, Stream kFrom>
HWY_INLINE void SumProducts(const ValueTiles& values, const WeightedTiles<R>& tiles, std::int64_t b,
                            int first, const std::uint32_t (&code_sums)[R], VWeight (&sums)[R][2]) {
  __m512i low[kRows][2];
  __m512i high[kRows][2];
  KVCACHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVCACHE_UNROLL
    for (int half = 0; half < 2; ++half) low[r][half] = high[r][half] = _mm512_setzero_si512();
  }
  for (int t = 0; t < tiles.count; ++t) {
    const std::uint8_t* const block = tiles.tiles[t] + b * CodeBytes(kType, kKvBlock) * kCellTile;
    KVCACHE_UNROLL
    for (int quad = 0; quad < 4; ++quad) {
      __m512i value[2];
      KVCACHE_UNROLL
      for (int half = 0; half < 2; ++half) value[half] = ValueLine<kType>(block, quad, half);
      if (kFrom == Stream::kMemory) values.prefetch->Advance<PrefetchRate<kType>::kSums>();
      KVCACHE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float* const four = tiles.Codes(t, first + r) + quad * 4;
        const __m512i lows = FourWeights(four);
        const __m512i highs = FourWeights(four + 1);
        KVCACHE_UNROLL
        for (int half = 0; half < 2; ++half) {
          low[r][half] = _mm512_dpbusd_epi32(low[r][half], value[half], lows);
          high[r][half] = _mm512_dpbusd_epi32(high[r][half], value[half], highs);
        }
      }
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512i correction =
        _mm512_set1_epi32(static_cast<std::int32_t>(-values.offset * code_sums[first + r]));
    KVCACHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(high[r][half], 8), low[r][half]);
      sums[first + r][half] = VWeight{_mm512_add_epi32(both, correction)};
    }
  }
}

// The number of rows whose sums fit into the registers.
template <int R>
inline constexpr int kRowsInRegisters = R == 8 ? 4 : R;

#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

using V16 = hn::Vec<hn::Repartition<std::int16_t, DF> >;

// The codes of neighbouring cells, widened to 16 bits. A lane of 32 bits has one of the 16 values
// of half `kHalf` of a block, for cells 0 and 2 of four, or for 1 and 3.
struct CellPairs {
  V16 even;
  V16 odd;
};

template <DType kType, int kHalf>
HWY_INLINE CellPairs LoadCellPairs(const std::uint8_t* block, int quad, int v) {
  const hn::Repartition<std::uint16_t, DF> du;
  const hn::Repartition<std::int16_t, DF> d;
  constexpr bool kBytes = kType == DType::kQ8_0;
  const int line = kBytes ? kHalf * 4 + quad : quad;
  const std::uint8_t* const from = block + line * 64 + v * kLanes * 4;
  const auto codes = hn::LoadU(du, reinterpret_cast<const std::uint16_t*>(from));
  const auto mask = hn::Set(du, kBytes ? 255 : 15);
  const auto low = kBytes || kHalf == 0 ? codes : hn::ShiftRight<4>(codes);
  auto high = hn::ShiftRight<8 + (kBytes || kHalf == 0 ? 0 : 4)>(codes);
  if (!kBytes && kHalf == 0) high = hn::And(high, mask);
  return {hn::BitCast(d, hn::And(low, mask)), hn::BitCast(d, high)};
}

HWY_INLINE V16 TwoWeights(const float* codes) {
  std::int32_t two;
  std::memcpy(&two, codes, 4);
  return hn::BitCast(hn::Repartition<std::int16_t, DF>(), hn::Set(hn::RebindToSigned<DF>(), two));
}

template <class Codes>
inline constexpr bool kIsFused = !std::is_same_v<Codes, TargetCodes>;

// sum[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1], in 32 bits.
template <class Codes>
HWY_INLINE VWeight AddPairs(VWeight sum, V16 a, V16 b) {
#if HWY_TARGET == HWY_AVX2
  if constexpr (kIsFused<Codes>) {
    // The kernels of AVX2 are compiled without AVX-VNNI, so there is no intrinsic for it.
    asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
    return sum;
  }
  return hn::Add(sum, VWeight{_mm256_madd_epi16(a.raw, b.raw)});
#else
  return hn::Add(sum, VWeight{_mm512_madd_epi16(a.raw, b.raw)});
#endif
}

// Makes the address of the next weights depend on sums. The compiler would otherwise compute the
// products of many cells at once, and move them to the stack.
HWY_INLINE void LoadAfter(const VWeight (&sums)[kRegs], const float*& weights) {
#if HWY_TARGET == HWY_AVX2
  asm("" : "+r"(weights) : "x"(sums[0].raw), "x"(sums[1].raw));
#else
  asm("" : "+r"(weights) : "v"(sums[0].raw));
#endif
}

// sums[r] of half `kHalf` of block b for kRows rows from row `first`, as integers.
template <class Codes, DType kType, int kHalf, int R, int kRows, Stream kFrom>
HWY_INLINE void SumHalf(const ValueTiles& values, const WeightedTiles<R>& tiles, std::int64_t b,
                        int first, const std::uint32_t (&code_sums)[R],
                        VWeight (&sums)[R][2 * kRegs]) {
  const hn::RebindToSigned<DF> di;
  VWeight sum[kRows][kRegs];
  KVCACHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kRegs; ++v) sum[r][v] = hn::Zero(di);
  }
  for (int t = 0; t < tiles.count; ++t) {
    const std::uint8_t* const block = tiles.tiles[t] + b * CodeBytes(kType, kKvBlock) * kCellTile;
    const float* weights = tiles.Codes(t, first);
    constexpr bool kPrefetches = kFrom == Stream::kMemory && kHalf < PrefetchRate<kType>::kSums;
    KVCACHE_UNROLL
    for (int quad = 0; quad < 4; ++quad) {
      CellPairs codes[kRegs];
      KVCACHE_UNROLL
      for (int v = 0; v < kRegs; ++v) codes[v] = LoadCellPairs<kType, kHalf>(block, quad, v);
      if (kPrefetches) values.prefetch->template Advance<1>();
      KVCACHE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float* const four = weights + r * kCellTile + quad * 4;
        const V16 even = TwoWeights(four);
        KVCACHE_UNROLL
        for (int v = 0; v < kRegs; ++v) {
          sum[r][v] = AddPairs<Codes>(sum[r][v], codes[v].even, even);
        }
        const V16 odd = TwoWeights(four + 1);
        KVCACHE_UNROLL
        for (int v = 0; v < kRegs; ++v) {
          sum[r][v] = AddPairs<Codes>(sum[r][v], codes[v].odd, odd);
        }
        if (!kIsFused<Codes>) LoadAfter(sum[r], weights);
      }
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const auto correction = static_cast<std::int32_t>(-values.offset * code_sums[first + r]);
    KVCACHE_UNROLL
    for (int v = 0; v < kRegs; ++v) {
      sums[first + r][kHalf * kRegs + v] = hn::Add(sum[r][v], hn::Set(di, correction));
    }
  }
}

// sums[r] of block b for kRows rows from row `first`, as integers.
template <class Codes, DType kType, int R, int kRows, Stream kFrom>
HWY_INLINE void SumProducts(const ValueTiles& values, const WeightedTiles<R>& tiles, std::int64_t b,
                            int first, const std::uint32_t (&code_sums)[R],
                            VWeight (&sums)[R][2 * kRegs]) {
  SumHalf<Codes, kType, 0, R, kRows, kFrom>(values, tiles, b, first, code_sums, sums);
  SumHalf<Codes, kType, 1, R, kRows, kFrom>(values, tiles, b, first, code_sums, sums);
}

template <int R>
inline constexpr int kRowsInRegisters = R == 8 ? 4 : R;

#else

#if HWY_ARCH_ARM_A64

// Register v of the 16 values of half `half` of a block, for four cells: four values.
template <DType kType>
HWY_INLINE uint8x16_t FourValues(const std::uint8_t* block, int quad, int half, int v) {
  if constexpr (kType == DType::kQ8_0) {
    return vld1q_u8(block + (half * 4 + quad) * 64 + v * 16);
  } else {
    const uint8x16_t both = vld1q_u8(block + quad * 64 + v * 16);
    return half == 0 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
  }
}

// Adds the products of four cells, whose weights are the digits kQuad of `digits`.
template <DType kType, int kQuad, int kRows>
HWY_INLINE void AddQuad(const std::uint8_t* block, int quad, int half,
                        const int8x16_t (&digits)[kRows], int32x4_t (&low)[kRows][4],
                        int32x4_t (&high)[kRows][4]) {
  constexpr block::HWY_NAMESPACE::Bytes kBytes{MaxCode(kType), true};
  KVCACHE_UNROLL
  for (int v = 0; v < 4; ++v) {
    const uint8x16_t values =
        block::HWY_NAMESPACE::WithSigns<kBytes>(FourValues<kType>(block, quad, half, v));
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      low[r][v] = block::HWY_NAMESPACE::AddSignedFours<2 * kQuad>(low[r][v], values, digits[r]);
      high[r][v] =
          block::HWY_NAMESPACE::AddSignedFours<2 * kQuad + 1>(high[r][v], values, digits[r]);
    }
  }
}

// SumProducts with products of four bytes.
template <DType kType, int R, int kRows>
HWY_INLINE void SumDigits(const ValueTiles& values, const WeightedTiles<R>& tiles, std::int64_t b,
                          int first, const std::uint32_t (&code_sums)[R],
                          VWeight (&sums)[R][2 * kRegs]) {
  // What the codes exceed the values by.
  constexpr bool kFlips = block::HWY_NAMESPACE::FlipsSigns({MaxCode(kType), true});
  const std::uint32_t excess = values.offset - (kFlips ? 128 : 0);
  for (int half = 0; half < 2; ++half) {
    int32x4_t low[kRows][4];
    int32x4_t high[kRows][4];
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KVCACHE_UNROLL
      for (int v = 0; v < 4; ++v) {
        low[r][v] = vdupq_n_s32(static_cast<std::int32_t>(-excess * code_sums[first + r]));
        high[r][v] = vdupq_n_s32(0);
      }
    }
    for (int t = 0; t < tiles.count; ++t) {
      const std::uint8_t* const block = tiles.tiles[t] + b * CodeBytes(kType, kKvBlock) * kCellTile;
      KVCACHE_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        int8x16_t digits[kRows];
        KVCACHE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const auto* const codes = reinterpret_cast<const std::int8_t*>(tiles.Codes(t, first + r));
          digits[r] = vld1q_s8(codes + pair * 16);
        }
        AddQuad<kType, 0>(block, 2 * pair, half, digits, low, high);
        AddQuad<kType, 1>(block, 2 * pair + 1, half, digits, low, high);
      }
    }
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KVCACHE_UNROLL
      for (int v = 0; v < 4; ++v) {
        sums[first + r][half * 4 + v] = VWeight(vaddq_s32(low[r][v], vshlq_n_s32(high[r][v], 8)));
      }
    }
  }
}

#endif

// sums[r] of block b for kRows rows from row `first`, as integers.
template <class Codes, DType kType, int R, int kRows, Stream>
HWY_INLINE void SumProducts(const ValueTiles& values, const WeightedTiles<R>& tiles, std::int64_t b,
                            int first, const std::uint32_t (&code_sums)[R],
                            VWeight (&sums)[R][2 * kRegs]) {
#if HWY_ARCH_ARM_A64
  if constexpr (!std::is_same_v<Codes, TargetCodes>) {
    return SumDigits<kType, R, kRows>(values, tiles, b, first, code_sums, sums);
  }
#endif
  const hn::RebindToSigned<DF> di;
  HWY_ALIGN std::uint8_t unpacked[kKvBlock * kCellTile];
  for (int r = first; r < first + kRows; ++r) {
    const auto correction = static_cast<std::int32_t>(-values.offset * code_sums[r]);
    for (int v = 0; v < 2 * kRegs; ++v) sums[r][v] = hn::Set(di, correction);
  }
  static_assert(kRows == 1 || kKvBlock * sizeof(std::int16_t) == kCellTile * sizeof(float));
  for (int t = 0; t < tiles.count; ++t) {
    const std::uint8_t* const bytes =
        BlockCodes<kType>(tiles.tiles[t] + b * CodeBytes(kType, kKvBlock) * kCellTile, unpacked);
    const auto* const codes = reinterpret_cast<const std::int16_t*>(tiles.Codes(t, first));
    for (int half = 0; half < 2; ++half) {
      VWeight dots[kRows][kRegs];
      block::HWY_NAMESPACE::DotGroupsOf16Bits<block::HWY_NAMESPACE::Init::kZero, 4>(
          bytes + half * kKvBlock / 2 * kCellTile, codes, nullptr, dots);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kRegs; ++v) {
          VWeight& sum = sums[first + r][half * kRegs + v];
          sum = hn::Add(sum, dots[r][v]);
        }
      }
    }
  }
}

template <int R>
inline constexpr int kRowsInRegisters = R % 2 == 0 ? 2 : 1;

#endif

template <class Codes, DType kType, int R, Stream kFrom, bool kOneScale>
void WeightBlocksWith(const ValueTiles& values, const WeightedRows& rows, float* workspace) {
  constexpr int kRows = kRowsInRegisters<R>;
  static_assert(R % kRows == 0 && R <= kMaxBlockValueRows);
  const DF d;
  WeightedTiles<R> tiles(workspace);
  GatherWeights<kType>(values, rows, tiles);
  // Units are found for several blocks in turn: only the sums of the first of them wait for a unit's division.
  constexpr std::int64_t kUnits = kOneScale ? 1 : 4;
  const std::int64_t blocks = values.v_dim / kKvBlock;
  BlockUnits<R> found[kUnits];
  std::uint32_t code_sums[R];
  for (std::int64_t b = 0; b < blocks; ++b) {
    VWeight sums[R][2 * kRegs];
    if (kOneScale ? b == 0 : b % kUnits == 0) {
      for (std::int64_t i = 0; i < std::min(kUnits, blocks - b); ++i) {
        found[i] = FindUnits<kType, R, kFrom>(values, tiles, b + i);
      }
    }
    const BlockUnits<R>& of_block = found[b % kUnits];
    if (!kOneScale || b == 0) {
      QuantizeProducts<Codes, kType, R, kFrom>(values, tiles, b, of_block, code_sums);
    }
    SumProducts<Codes, kType, R, kRows, kFrom>(values, tiles, b, 0, code_sums, sums);
    for (int first = kRows; first < R; first += kRows) {
      SumProducts<Codes, kType, R, kRows, Stream::kWorkspace>(values, tiles, b, first, code_sums,
                                                              sums);
    }
    for (int r = 0; r < R; ++r) {
      float* const to = rows.sums + r * rows.sum_stride + b * kKvBlock;
      for (int v = 0; v < 2 * kRegs; ++v) {
        const VF sum = hn::Mul(hn::ConvertTo(d, sums[r][v]), hn::Set(d, of_block.units[r].unit));
        hn::StoreU(sum, d, to + v * kLanes);
      }
    }
  }
}

// Computes rows.sums[r][0, v_dim) for R rows. `workspace` holds BlockValuesFloats. kOneScale: a cell's blocks have the
// scale of its first.
template <DType kType, int R, Stream kFrom, bool kOneScale = false>
void WeightBlocks(const ValueTiles& values, const WeightedRows& rows, float* workspace) {
#if HWY_TARGET == HWY_AVX2
  // A sum would wait for its own last step of AVX-VNNI if there were few.
  if (R >= 4 && ByteProductsInUse() != ByteProducts::kOfTarget) {
    return WeightBlocksWith<FusedCodes, kType, R, kFrom, kOneScale>(values, rows, workspace);
  }
#elif HWY_ARCH_ARM_A64
  if (ByteProductsInUse() != ByteProducts::kOfTarget) {
    return WeightBlocksWith<DigitCodes, kType, R, kFrom, kOneScale>(values, rows, workspace);
  }
#endif
  WeightBlocksWith<TargetCodes, kType, R, kFrom, kOneScale>(values, rows, workspace);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
