// Dot products of int8 inputs, four at a time, with 16 rows: exact integers on every target.
//
// Compiled once per target. Each defines
//   Value        the type of a quantised input, which is at least -127 and at most 127
//   kTileTokens  the tokens of a tile, and
//   kTilePanels  its panels: their sums stay in registers
//   DotGroups    dots[panel][token][16 rows] = init[token] + Σ byte × input
//   OneTokenDots the same for one token and one panel, whose bytes come from registers, group by
//                group
//
// AVX3_DL multiplies and adds four bytes at once. AVX3 and AVX2 multiply pairs of bytes and add
// each pair in 16 bits, which overflows for large bytes: DotGroups is told the largest one. If it is
// above 127, the inputs are two digits: input = 16 high + low, both from -8 to 8. On a processor with
// AVX-VNNI the kernels of AVX2 multiply and add four bytes at once too (Bytes::fours). The portable
// target widens both factors to 16 bits.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_DOT_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cpu/linear/linear_block.h"
#include "backend/cpu/simd/simd-inl.h"

// Highway 1.0 compiles AVX3_DL with 256-bit VNNI only; this adds the 512-bit one. It replaces
// HWY_BEFORE_NAMESPACE instead of being nested in it because Clang honours one attribute only.
#undef KVCACHE_BEFORE_DOT
#if HWY_ARCH_X86
#include <immintrin.h>
#endif
#if HWY_TARGET == HWY_AVX3_DL
#define KVCACHE_BEFORE_DOT() HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni") static_assert(true)
#else
#define KVCACHE_BEFORE_DOT() HWY_BEFORE_NAMESPACE()
#endif

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using cpu::HWY_NAMESPACE::DF;
using cpu::HWY_NAMESPACE::kLanes;
using cpu::HWY_NAMESPACE::VF;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
using D8 = hn::Repartition<std::uint8_t, DF>;
using V8 = hn::Vec<D8>;

inline constexpr int kPanelRegs = static_cast<int>(kPanelRows) / kLanes;
inline constexpr int kVectorBytes = 4 * kLanes;

// The start of DotGroups' sums: zero, or `init`. `init` is null for kZero. The inputs of neighbouring
// tokens are kBlock apart, even if only a part of a block is used; with digits 2 kBlock, and the high
// digits of a block follow its low ones.
enum class Init : std::uint8_t { kZero, kCorrections };

inline constexpr int kAnyByte = 255;

// The bytes of a product.
struct Bytes {
  int max;             // no byte exceeds it
  bool fours = false;  // AVX2 only: uses AVX-VNNI
};

// The number of digits of an input that is multiplied with such bytes.
constexpr int DigitsOf(Bytes bytes) {
  constexpr bool kPairs = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3;
  return kPairs && !bytes.fours && bytes.max > 127 ? 2 : 1;
}

// OneTokenDots<kBytes, kInit, kGroups>: Put<kGroup, kNth>(r, bytes) adds the products of register
// r of group kGroup. It is called once per group and register; kNth counts the groups in the order
// of the calls. Dot(r) is the sum then.

#if HWY_TARGET == HWY_AVX3_DL

using Value = std::int8_t;
inline constexpr int kTileTokens = 6;
inline constexpr int kTilePanels = 2;
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

template <Bytes /*kBytes*/, Init kInit, int /*kGroups*/>
class OneTokenDots {
 public:
  HWY_INLINE OneTokenDots(const Value* x, std::int32_t init)
      : x_(x),
        sum_{kInit == Init::kZero ? _mm512_setzero_si512() : _mm512_set1_epi32(init),
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

#else

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
      dots[t][r] = hn::Add(pairs, first);
    }
  }
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

using Value = std::int8_t;
inline constexpr int kTileTokens = HWY_TARGET == HWY_AVX3 ? 8 : 4;
inline constexpr int kTilePanels = 1;

#if HWY_TARGET == HWY_AVX3
using Raw = __m512i;
HWY_INLINE Raw LoadLine(const std::uint8_t* at) {
  return _mm512_loadu_si512(at);
}
HWY_INLINE Raw SetFour(std::int32_t four) {
  return _mm512_set1_epi32(four);
}
HWY_INLINE Raw MulBytes(Raw bytes, Raw x) {
  return _mm512_maddubs_epi16(bytes, x);
}
HWY_INLINE Raw AddPairs(Raw a, Raw b) {
  return _mm512_add_epi16(a, b);
}
HWY_INLINE Raw WidenPairs(Raw a, std::int16_t factor = 1) {
  return _mm512_madd_epi16(a, _mm512_set1_epi16(factor));
}
HWY_INLINE Raw AddSums(Raw a, Raw b) {
  return _mm512_add_epi32(a, b);
}
#else
using Raw = __m256i;
HWY_INLINE Raw LoadLine(const std::uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
HWY_INLINE Raw SetFour(std::int32_t four) {
  return _mm256_set1_epi32(four);
}
HWY_INLINE Raw MulBytes(Raw bytes, Raw x) {
  return _mm256_maddubs_epi16(bytes, x);
}
HWY_INLINE Raw AddPairs(Raw a, Raw b) {
  return _mm256_add_epi16(a, b);
}
HWY_INLINE Raw WidenPairs(Raw a, std::int16_t factor = 1) {
  return _mm256_madd_epi16(a, _mm256_set1_epi16(factor));
}
HWY_INLINE Raw AddSums(Raw a, Raw b) {
  return _mm256_add_epi32(a, b);
}
#endif

// Adds to each sum the products of four bytes with four inputs, with AVX-VNNI. The kernels of AVX2 are
// compiled without it, so there is no intrinsic for it.
HWY_INLINE Raw AddFours(Raw sum, Raw bytes, Raw x) {
#if HWY_TARGET == HWY_AVX2
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(bytes), "x"(x));
#endif
  return sum;
}

// Makes the address `x` depend on sums, so that the compiler loads from it only after they are
// computed. It would otherwise load the inputs of many tokens at once, and move sums to the stack.
template <int kCount>
HWY_INLINE void LoadAfter(const Raw (&sums)[kCount], const Value*& x) {
  static_assert(kCount <= 2);
  if constexpr (kCount == 2) {
    asm("" : "+r"(x) : "x"(sums[0]), "x"(sums[1]));
  } else {
    asm("" : "+r"(x) : "x"(sums[0]));
  }
}

constexpr int MaxInput(Bytes bytes) {
  return DigitsOf(bytes) == 2 ? 8 : 127;
}

// The number of products of pairs that are added in 16 bits before they are widened.
constexpr int RunOf(Bytes bytes, int groups) {
  const auto pair = static_cast<unsigned>(2 * bytes.max * MaxInput(bytes));
  return std::min(groups, static_cast<int>(std::bit_floor(32767U / pair)));
}

// Multiplies pairs of bytes with pairs of inputs, or of one of their digits, and adds as many of the
// 16-bit results as cannot overflow before it widens them and multiplies them by kScale. Adds to
// `sums` unless kFirst.
// Calls each_group() after each group, for prefetching.
template <Bytes kBytes, int kScale, bool kFirst, int kGroups, int kTokens, int kPanelRegs,
          class EachGroup>
HWY_INLINE void AddPairProducts(const std::uint8_t* quants, const Value* x,
                                Raw (&sums)[kTokens][kPanelRegs], const EachGroup& each_group) {
  constexpr int kRun = RunOf(kBytes, kGroups);
  static_assert(kGroups % kRun == 0);
  constexpr int kRegBytes = static_cast<int>(sizeof(Raw));
  Raw pairs[kTokens][kPanelRegs];
  KVCACHE_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    Raw w[kPanelRegs];
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) w[r] = LoadLine(quants + g * kLine + r * kRegBytes);
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      std::int32_t four;
      std::memcpy(&four, x + t * DigitsOf(kBytes) * kBlock + g * 4, 4);
      const Raw inputs = SetFour(four);
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        const Raw product = MulBytes(w[r], inputs);
        pairs[t][r] = g % kRun == 0 ? product : AddPairs(pairs[t][r], product);
        if (g % kRun == kRun - 1) {
          const Raw wide = WidenPairs(pairs[t][r], kScale);
          sums[t][r] = kFirst && g < kRun ? wide : AddSums(sums[t][r], wide);
        }
      }
      if (kTokens == 1) continue;
      if (g % kRun == kRun - 1) {
        LoadAfter(sums[t], x);
      } else {
        LoadAfter(pairs[t], x);
      }
    }
    each_group();
  }
}

// The same with AVX-VNNI, whose sums need not be widened.
template <int kGroups, int kTokens, int kPanelRegs, class EachGroup>
HWY_INLINE void AddFourProducts(const std::uint8_t* quants, const Value* x,
                                Raw (&sums)[kTokens][kPanelRegs], const EachGroup& each_group) {
  constexpr int kRegBytes = static_cast<int>(sizeof(Raw));
  KVCACHE_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    Raw w[kPanelRegs];
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) w[r] = LoadLine(quants + g * kLine + r * kRegBytes);
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      std::int32_t four;
      std::memcpy(&four, x + t * kBlock + g * 4, 4);
      const Raw inputs = SetFour(four);
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) sums[t][r] = AddFours(sums[t][r], w[r], inputs);
    }
    each_group();
  }
}

template <Bytes kBytes, Init kInit, int kGroups>
class OneTokenDots {
 public:
  HWY_INLINE OneTokenDots(const Value* x, std::int32_t init) : x_(x), init_(init) {}

  template <int kGroup, int kNth>
  HWY_INLINE void Put(int r, V8 bytes) {
    if constexpr (kBytes.fours) {
      std::int32_t four;
      std::memcpy(&four, x_ + kGroup * 4, 4);
      // A single sum would wait for its own last step.
      Raw& sum = kNth % 2 == 0 ? sums_[r] : pairs_[0][r];
      sum = AddFours(kNth < 2 ? SetFour(0) : sum, bytes.raw, SetFour(four));
    } else {
      PutPairs<kGroup, kNth>(r, bytes);
    }
  }
  HWY_INLINE VI Dot(int r) const {
    const Raw sum = kBytes.fours ? AddSums(sums_[r], pairs_[0][r]) : sums_[r];
    return VI{kInit == Init::kCorrections ? AddSums(sum, SetFour(init_)) : sum};
  }

 private:
  template <int kGroup, int kNth>
  HWY_INLINE void PutPairs(int r, V8 bytes) {
    constexpr int kRun = RunOf(kBytes, kGroups);
    KVCACHE_UNROLL
    for (int digit = 0; digit < kCount; ++digit) {
      std::int32_t four;
      std::memcpy(&four, x_ + digit * kBlock + kGroup * 4, 4);
      Raw& pairs = pairs_[digit][r];
      const Raw product = MulBytes(bytes.raw, SetFour(four));
      pairs = kNth % kRun == 0 ? product : AddPairs(pairs, product);
      if constexpr (kNth % kRun == kRun - 1) {
        const Raw wide = WidenPairs(pairs, digit == 0 ? 1 : 16);
        sums_[r] = kNth < kRun && digit == 0 ? wide : AddSums(sums_[r], wide);
      }
    }
    if (kNth % 2 == 1 && r == kPanelRegs - 1)
      LoadAfter(kNth % kRun == kRun - 1 ? sums_ : pairs_[kCount - 1], x_);
  }

  static constexpr int kCount = DigitsOf(kBytes);
  const Value* x_;
  std::int32_t init_;
  Raw pairs_[kCount][kPanelRegs];
  Raw sums_[kPanelRegs];
};

struct DoNothing {
  HWY_INLINE void operator()() const {}
};

template <Bytes kBytes, Init kInit, int kGroups, int kTokens, int kPanels, class VI, int kPanelRegs,
          class EachGroup = DoNothing>
HWY_INLINE void DotGroups(const std::uint8_t* const (&quants)[kPanels], const Value* x,
                          const std::int32_t* init, VI (&dots)[kPanels][kTokens][kPanelRegs],
                          const EachGroup& each_group = {}) {
  static_assert(kPanels == 1);
  Raw sums[kTokens][kPanelRegs];
  if constexpr (kBytes.fours) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        sums[t][r] = SetFour(kInit == Init::kCorrections ? init[t] : 0);
      }
    }
    AddFourProducts<kGroups>(quants[0], x, sums, each_group);
  } else {
    AddPairProducts<kBytes, 1, true, kGroups>(quants[0], x, sums, each_group);
    if constexpr (DigitsOf(kBytes) == 2) {
      AddPairProducts<kBytes, 16, false, kGroups>(quants[0], x + kBlock, sums, each_group);
    }
  }
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const bool is_open = kInit == Init::kCorrections && !kBytes.fours;
      dots[0][t][r] = VI{is_open ? AddSums(sums[t][r], SetFour(init[t])) : sums[t][r]};
    }
  }
}

#else

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

template <Bytes /*kBytes*/, Init kInit, int /*kGroups*/>
class OneTokenDots {
 public:
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
    return kInit == Init::kZero ? pairs : hn::Add(pairs, hn::Set(d, init_));
  }

 private:
  using D16 = hn::Repartition<std::int16_t, DF>;
  static constexpr int kPairRegs = 2 * kPanelRegs;

  HWY_INLINE void Add(int p, hn::Vec<D16> w, hn::Vec<D16> inputs) {
    sum0_[p] = hn::ReorderWidenMulAccumulate(DI(), w, inputs, sum0_[p], sum1_[p]);
  }

  const Value* x_;
  std::int32_t init_;
  VI sum0_[kPairRegs];
  VI sum1_[kPairRegs];
};

#endif

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
