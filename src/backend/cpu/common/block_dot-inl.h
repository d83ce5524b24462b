// Dot products of int8 inputs, four at a time, with 16 rows: exact integers on every target.
//
// Compiled once per target. Each defines
//   Value        the type of a quantised input, which is at least -127 and at most 127
//   kTileTokens  the tokens of a tile, and
//   kTilePanels  its panels: their sums stay in registers
//   DotGroups    dots[panel][token][16 rows] = init[token] + Σ byte × input
//   OneTokenDots the same for one token and one panel, whose bytes come from registers, group by
//                group
//   kFewTokens   up to so many tokens take the bytes of a panel from registers too, in tiles of up to
//   kFewTileTokens  tokens (TokenDots). 1: none do
//
// AVX3_DL multiplies and adds four bytes at once. AVX3 and AVX2 multiply pairs of bytes and add
// each pair in 16 bits, which overflows for large bytes: DotGroups is told the largest one. If it is
// above 127, the inputs are two digits: input = 16 high + low, both from -8 to 8. On a processor with
// AVX-VNNI the kernels of AVX2 multiply and add four bytes at once too (Bytes::fours). NEON multiplies
// signed bytes (block_neon-inl.h). The portable target widens both factors to 16 bits.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#endif

#include <cstddef>
#include <cstring>
#include <iterator>

#include "backend/cpu/common/block_bytes-inl.h"
#include "backend/cpu/common/block_neon-inl.h"
#include "backend/cpu/common/block_pairs-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

// OneTokenDots<OneTokenKind>: Put<kGroup, kNth>(r, bytes) adds the products of register
// r of group kGroup. It is called once per group and register; kNth counts the groups in the order
// of the calls. Dot(r) is the sum then.

#if HWY_TARGET == HWY_AVX3_DL

using Value = std::int8_t;
inline constexpr int kTileTokens = 6;
inline constexpr int kTilePanels = 2;
inline constexpr int kFewTokens = 36;
inline constexpr int kFewTileTokens = 12;
using Dots = hn::Vec<hn::Full512<std::int32_t>>;

// Panels are the innermost loop: one broadcast of inputs serves all of them, then its register is
// free.
template <Bytes /*kBytes*/, Init kInit, int kGroups, int kTokens, int kPanels>
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

template <OneTokenKind kKind>
class OneTokenDots {
 public:
  static constexpr bool kTakesFourfold = false;
  HWY_INLINE OneTokenDots(const Value* x, std::int32_t init)
      : x_(x),
        sum_{kKind.init == Init::kZero ? _mm512_setzero_si512() : _mm512_set1_epi32(init),
             _mm512_setzero_si512()} {}

  template <int kGroup, int kNth>
  HWY_INLINE void Put(int, V8 bytes) {
    std::int32_t four;
    std::memcpy(&four, x_ + kGroup * 4, 4);
    sum_[kNth % 2] = _mm512_dpbusd_epi32(sum_[kNth % 2], bytes.raw, _mm512_set1_epi32(four));
  }
  HWY_INLINE VI Dot(int) const { return VI{_mm512_add_epi32(sum_[0], sum_[1])}; }

 private:
  const Value* x_;
  __m512i sum_[2];  // a single sum would wait for its own last step
};

// The same for several tokens.
template <Init kInit, int kTokens>
class TokenDots {
 public:
  static constexpr bool kTakesFourfold = false;
  HWY_INLINE TokenDots(const Value* x, const std::int32_t* init) : x_(x) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      sum_[0][t] = kInit == Init::kZero ? _mm512_setzero_si512() : _mm512_set1_epi32(init[t]);
      sum_[kParts - 1][t] = kParts == 1 ? sum_[0][t] : _mm512_setzero_si512();
    }
  }

  template <int kGroup, int kNth>
  HWY_INLINE void Put(int, V8 bytes) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      std::int32_t four;
      std::memcpy(&four, x_ + t * kBlock + kGroup * 4, 4);
      __m512i& sum = sum_[kNth % kParts][t];
      sum = _mm512_dpbusd_epi32(sum, bytes.raw, _mm512_set1_epi32(four));
    }
  }
  HWY_INLINE VI Dot(int t) const {
    return VI{kParts == 1 ? sum_[0][t] : _mm512_add_epi32(sum_[0][t], sum_[kParts - 1][t])};
  }

 private:
  static constexpr int kParts =
      kTokens <= 4 ? 2 : 1;  // few sums would wait for their own last steps
  const Value* x_;
  __m512i sum_[kParts][kTokens];
};

#elif HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_AVX3

// Adds the products of pairs of 16 bits: their even elements to `even`, their odd ones to `odd`. Highway's call for
// the portable target computes the same integers, one lane after the other in memory, in three times as long.
template <class VI, class V16>
HWY_INLINE void AddPairs(V16 a, V16 b, VI& even, VI& odd) {
#if HWY_TARGET == HWY_EMU128
  for (std::size_t i = 0; i < std::size(even.raw); ++i) {
    even.raw[i] += a.raw[2 * i] * b.raw[2 * i];
    odd.raw[i] += a.raw[2 * i + 1] * b.raw[2 * i + 1];
  }
#else
  even = hn::ReorderWidenMulAccumulate(hn::DFromV<VI>(), a, b, even, odd);
#endif
}

// The same for inputs of 16 bits. Widens the bytes. Products are added in pairs; the two pairs of a
// row are added at the end of the block.
template <Init kInit, int kGroups, int kTokens, class VI, int kPanelRegs>
HWY_INLINE void DotGroupsOf16Bits(const std::uint8_t* quants, const std::int16_t* x,
                                  const std::int32_t* init, VI (&dots)[kTokens][kPanelRegs]) {
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
      const auto w = hn::PromoteTo(d16, hn::LoadU(d8, quants + g * kLine + p * 2 * kLanes));
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        std::int64_t four;
        std::memcpy(&four, x + t * kBlock + g * 4, 8);
        const auto inputs = hn::BitCast(d16, hn::Set(d64, four));
        AddPairs(w, inputs, sum0[t][p], sum1[t][p]);
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
      dots[t][r] = hn::Add(pairs, first);
    }
  }
}

#if !HWY_ARCH_ARM_A64
using Value = std::int16_t;
inline constexpr int kTileTokens = 2;
inline constexpr int kTilePanels = 1;

template <Bytes /*kBytes*/, Init kInit, int kGroups, int kTokens, int kPanels, class VI,
          int kPanelRegs, class EachGroup = int>
HWY_INLINE void DotGroups(const std::uint8_t* const (&quants)[kPanels], const Value* x,
                          const std::int32_t* init, VI (&dots)[kPanels][kTokens][kPanelRegs],
                          const EachGroup& /*each_group*/ = {}) {
  static_assert(kPanels == 1);
  DotGroupsOf16Bits<kInit, kGroups>(quants[0], x, init, dots[0]);
}

template <OneTokenKind kKind>
class OneTokenDots {
 public:
  static constexpr bool kTakesFourfold = false;
  HWY_INLINE OneTokenDots(const Value* x, std::int32_t init) : x_(x), init_(init) {
    for (int p = 0; p < kPairRegs; ++p) sum0_[p] = sum1_[p] = hn::Zero(DI());
  }

  template <int kGroup, int kNth>
  HWY_INLINE void Put(int r, V8 bytes) {
    const hn::Half<D8> half;
    std::int64_t four;
    std::memcpy(&four, x_ + kGroup * 4, 8);
    const auto inputs = hn::BitCast(D16(), hn::Set(hn::Repartition<std::int64_t, DF>(), four));
    Add(2 * r, hn::PromoteTo(D16(), hn::LowerHalf(half, bytes)), inputs);
    Add(2 * r + 1, hn::PromoteTo(D16(), hn::UpperHalf(half, bytes)), inputs);
  }
  HWY_INLINE VI Dot(int r) const {
    const DI d;
    const VI low = hn::RearrangeToOddPlusEven(sum0_[2 * r], sum1_[2 * r]);
    const VI high = hn::RearrangeToOddPlusEven(sum0_[2 * r + 1], sum1_[2 * r + 1]);
    const VI pairs = hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
    return kKind.init == Init::kZero ? pairs : hn::Add(pairs, hn::Set(d, init_));
  }

 private:
  using D16 = hn::Repartition<std::int16_t, DF>;
  static constexpr int kPairRegs = 2 * kPanelRegs;

  HWY_INLINE void Add(int p, hn::Vec<D16> w, hn::Vec<D16> inputs) {
    AddPairs(w, inputs, sum0_[p], sum1_[p]);
  }

  const Value* x_;
  std::int32_t init_;
  VI sum0_[kPairRegs];
  VI sum1_[kPairRegs];
};

#endif  // !HWY_ARCH_ARM_A64

#endif

#if HWY_TARGET != HWY_AVX3_DL
inline constexpr int kFewTokens = 1;
inline constexpr int kFewTileTokens = 1;
#endif

// The most tokens of a tile, of a call with so many tokens.
constexpr std::int64_t MostTileTokens(std::int64_t tokens) {
  return tokens <= kFewTokens ? kFewTileTokens : kTileTokens;
}

#if HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_AVX3
// Whether OneTokenDots has sums of 16 bits that it can multiply by scales.
constexpr bool CanScaleSums(Bytes /*bytes*/, int /*groups*/) {
  return false;
}
#endif

// Stores a vector of inputs at `to`, as kDigits digits.
template <int kDigits>
HWY_INLINE void StoreInputs(VI inputs, Value* to) {
  const hn::Rebind<Value, DF> d;
  if constexpr (kDigits == 1) {
    hn::StoreU(hn::DemoteTo(d, inputs), d, to);
  } else {
    const VI high = hn::ShiftRight<4>(hn::Add(inputs, hn::Set(DI(), 8)));
    hn::StoreU(hn::DemoteTo(d, hn::Sub(inputs, hn::ShiftLeft<4>(high))), d, to);
    hn::StoreU(hn::DemoteTo(d, high), d, to + kBlock);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
