// Dot products of int8 inputs, four at a time, with 16 rows: exact integers on every target.
//
// Compiled once per target. Each defines
//   Value        the type of a quantised input
//   kTileTokens  the tokens of a tile, and
//   kTilePanels  its panels: their sums stay in registers
//   DotGroups    dots[panel][token][16 rows] = init[token] + Σ unsigned weight × input
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#endif

#include <cstring>

#include "backend/cpu/linear/linear_block.h"
#include "backend/cpu/simd/simd-inl.h"

// Highway 1.0 compiles AVX3_DL with 256-bit VNNI only; this adds the 512-bit one. It replaces
// HWY_BEFORE_NAMESPACE instead of being nested in it because Clang honours one attribute only.
#undef KVCACHE_BEFORE_DOT
#if HWY_TARGET == HWY_AVX3_DL
#include <immintrin.h>
#define KVCACHE_BEFORE_DOT() HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni") static_assert(true)
#else
#define KVCACHE_BEFORE_DOT() HWY_BEFORE_NAMESPACE()
#endif

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Where the sums of DotGroups begin. The inputs of neighbouring tokens are kBlock apart, even if
// only a part of a block is used. `init` is null for kZero.
enum class Init : std::uint8_t { kZero, kCorrections };

#if HWY_TARGET == HWY_AVX3_DL

using Value = std::int8_t;
inline constexpr int kTileTokens = 6;
inline constexpr int kTilePanels = 2;
using Dots = hn::Vec<hn::Full512<std::int32_t>>;

// Panels are the innermost loop: one broadcast of inputs serves all of them, then its register is
// free.
template <Init kInit, int kGroups, int kTokens, int kPanels>
HWY_INLINE void DotGroups(const std::uint8_t* const (&quants)[kPanels], const Value* x,
                          const std::int32_t* init, Dots (&dots)[kPanels][kTokens][1]) {
  // With few sums each would wait for its own last step, so each is split in two and added up at
  // the end.
  constexpr int kParts = kTokens * kPanels <= 4 ? 2 : 1;
  __m512i sum[kParts][kPanels][kTokens];
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      sum[0][p][t] = kInit == Init::kZero ? _mm512_setzero_si512() : _mm512_set1_epi32(init[t]);
      sum[kParts - 1][p][t] = kParts == 1 ? sum[0][p][t] : _mm512_setzero_si512();
    }
  }
  KVCACHE_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    __m512i w[kPanels];
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) w[p] = _mm512_load_si512(quants[p] + g * kLine);
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      std::int32_t four;
      std::memcpy(&four, x + t * kBlock + g * 4, 4);
      const __m512i inputs = _mm512_set1_epi32(four);
      KVCACHE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        __m512i& part = sum[g % kParts][p][t];
        part = _mm512_dpbusd_epi32(part, w[p], inputs);
      }
    }
  }
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const __m512i first = sum[0][p][t];
      dots[p][t][0] = Dots{kParts == 1 ? first : _mm512_add_epi32(first, sum[kParts - 1][p][t])};
    }
  }
}

#else

using Value = std::int16_t;
inline constexpr int kTileTokens = cpu::HWY_NAMESPACE::kLanes == 16 ? 4 : 2;
inline constexpr int kTilePanels = 1;

// Widens weights and inputs to 16 bits. Products are added in pairs; the two pairs of a row are
// added at the end of the block.
template <Init kInit, int kGroups, int kTokens, int kPanels, class VI, int kPanelRegs>
HWY_INLINE void DotGroups(const std::uint8_t* const (&quants)[kPanels], const Value* x,
                          const std::int32_t* init, VI (&dots)[kPanels][kTokens][kPanelRegs]) {
  static_assert(kPanels == 1);
  using cpu::HWY_NAMESPACE::DF;
  using cpu::HWY_NAMESPACE::kLanes;
  const hn::RebindToSigned<DF> d32;
  const hn::Repartition<std::int16_t, DF> d16;
  const hn::Repartition<std::int64_t, DF> d64;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  constexpr int kPairRegs = 2 * kPanelRegs;
  VI sum0[kTokens][kPairRegs];
  VI sum1[kTokens][kPairRegs];
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int p = 0; p < kPairRegs; ++p) sum0[t][p] = sum1[t][p] = hn::Zero(d32);
  }
  KVCACHE_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    KVCACHE_UNROLL
    for (int p = 0; p < kPairRegs; ++p) {
      const auto w = hn::PromoteTo(d16, hn::LoadU(d8, quants[0] + g * kLine + p * 2 * kLanes));
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        std::int64_t four;
        std::memcpy(&four, x + t * kBlock + g * 4, 8);
        const auto inputs = hn::BitCast(d16, hn::Set(d64, four));
        sum0[t][p] = hn::ReorderWidenMulAccumulate(d32, w, inputs, sum0[t][p], sum1[t][p]);
      }
    }
  }
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const VI first = kInit == Init::kZero ? hn::Zero(d32) : hn::Set(d32, init[t]);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const VI low = hn::RearrangeToOddPlusEven(sum0[t][2 * r], sum1[t][2 * r]);
      const VI high = hn::RearrangeToOddPlusEven(sum0[t][2 * r + 1], sum1[t][2 * r + 1]);
      const VI pairs = hn::Add(hn::ConcatEven(d32, high, low), hn::ConcatOdd(d32, high, low));
      dots[0][t][r] = hn::Add(pairs, first);
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
