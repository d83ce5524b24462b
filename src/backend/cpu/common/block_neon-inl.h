// The products of common/block_dot-inl.h on Arm. A register holds four inputs of four rows.
//
// There are three ways, which give the same integers:
//   NEON          multiplies bytes and adds products in 16 bits; a run of them is widened to 32 bits
//   NEON_DOTPROD  SDOT, which multiplies and adds four bytes at once (Bytes::fours)
//   NEON_I8MM     USMMLA, which multiplies two rows and two tokens, eight inputs of each (Bytes::matrix);
//                 USDOT for one token
//
// NEON and SDOT multiply signed bytes. Where a byte may exceed 127 its sign bit is flipped, which takes 128 from it
// (FlipsSigns): the caller leaves out the correction by 128. USMMLA and USDOT multiply unsigned with signed bytes.
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_BLOCK_NEON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_BLOCK_NEON_INL_H_
#undef KVCACHE_BACKEND_CPU_BLOCK_NEON_INL_H_
#else
#define KVCACHE_BACKEND_CPU_BLOCK_NEON_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cpu/common/block_bytes-inl.h"

#if HWY_ARCH_ARM_A64

#if HWY_TARGET != HWY_NEON
#error "on Arm, kernels are written for Highway's NEON target; see targets.h"
#endif

#include <arm_neon.h>

// Tells the assembler of an instruction that a compiler's option has not named. The directive holds for the rest of
// the file, so it must not take away what an option has named.
#if defined(__ARM_FEATURE_DOTPROD)
#define KVCACHE_WITH_SDOT ""
#else
#define KVCACHE_WITH_SDOT ".arch armv8.2-a+dotprod\n\t"
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define KVCACHE_WITH_I8MM ""
#elif defined(__ARM_FEATURE_DOTPROD)
#define KVCACHE_WITH_I8MM ".arch_extension i8mm\n\t"
#else
#define KVCACHE_WITH_I8MM ".arch armv8.2-a+dotprod+i8mm\n\t"
#endif

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

using Value = std::int8_t;
inline constexpr int kTileTokens = 4;
inline constexpr int kTilePanels = 1;

// Kernels are compiled for processors without SDOT and USMMLA, so there are no intrinsics for them here.
template <int kIndex>
HWY_INLINE int32x4_t AddSignedFours(int32x4_t sum, uint8x16_t bytes, int8x16_t x) {
  asm(KVCACHE_WITH_SDOT "sdot %0.4s, %1.16b, %2.4b[%3]"
      : "+w"(sum)
      : "w"(bytes), "w"(x), "i"(kIndex));
  return sum;
}
template <int kIndex>
HWY_INLINE int32x4_t AddUnsignedFours(int32x4_t sum, uint8x16_t bytes, int8x16_t x) {
  asm(KVCACHE_WITH_I8MM "usdot %0.4s, %1.16b, %2.4b[%3]"
      : "+w"(sum)
      : "w"(bytes), "w"(x), "i"(kIndex));
  return sum;
}
// Adds the products of rows 0 and 1 with tokens 0 and 1: (0, 0), (0, 1), (1, 0), (1, 1).
HWY_INLINE int32x4_t AddTwoByTwo(int32x4_t sum, uint8x16_t rows, int8x16_t tokens) {
  asm(KVCACHE_WITH_I8MM "usmmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(rows), "w"(tokens));
  return sum;
}

template <Bytes kBytes>
HWY_INLINE uint8x16_t WithSigns(uint8x16_t bytes) {
  return FlipsSigns(kBytes) ? veorq_u8(bytes, vdupq_n_u8(128)) : bytes;
}

// Group kIndex of the four groups of inputs of `x`.
template <Bytes kBytes, int kIndex>
HWY_INLINE int32x4_t AddFours(int32x4_t sum, uint8x16_t bytes, int8x16_t x) {
  if constexpr (kBytes.matrix) return AddUnsignedFours<kIndex>(sum, bytes, x);
  return AddSignedFours<kIndex>(sum, WithSigns<kBytes>(bytes), x);
}

// The number of products that are added in 16 bits before they are widened.
constexpr int RunOf(Bytes bytes, int groups) {
  const unsigned largest = bytes.max > 127 ? 128U : static_cast<unsigned>(bytes.max);
  return std::min(groups, static_cast<int>(std::bit_floor(32767U / (largest * 127U))));
}

// Sums of a run of products: of the first two rows of a register, and of the others.
struct Run {
  int16x8_t low;
  int16x8_t high;

  template <bool kFirst>
  HWY_INLINE void Add(uint8x16_t bytes, int8x8_t x) {
    const int8x16_t w = vreinterpretq_s8_u8(bytes);
    low = kFirst ? vmull_s8(vget_low_s8(w), x) : vmlal_s8(low, vget_low_s8(w), x);
    high = kFirst ? vmull_s8(vget_high_s8(w), x) : vmlal_s8(high, vget_high_s8(w), x);
  }
  // The sums of pairs: of a row's inputs 0 and 1, and of its inputs 2 and 3.
  struct Pairs {
    int32x4_t low;
    int32x4_t high;
  };
  HWY_INLINE void AddTo(Pairs& sums) const {
    sums.low = vpadalq_s16(sums.low, low);
    sums.high = vpadalq_s16(sums.high, high);
  }
};
HWY_INLINE int32x4_t SumOf(const Run::Pairs& sums) {
  return vpaddq_s32(sums.low, sums.high);
}
inline constexpr auto kNoPairs = [] { return Run::Pairs{vdupq_n_s32(0), vdupq_n_s32(0)}; };

HWY_INLINE int8x8_t FourTwice(const Value* x) {
  std::int32_t four;
  std::memcpy(&four, x, 4);
  return vreinterpret_s8_s32(vdup_n_s32(four));
}

// Register by register: the sums of 16 bits of four registers would not fit beside each other.
template <Bytes kBytes, int kGroups, int kTokens, class EachGroup>
HWY_INLINE void AddRuns(const std::uint8_t* quants, const Value* x, int32x4_t (&sums)[kTokens][4],
                        const EachGroup& each_group) {
  constexpr int kRun = RunOf(kBytes, kGroups);
  static_assert(kGroups % kRun == 0);
  KVCACHE_UNROLL
  for (int r = 0; r < 4; ++r) {
    // The compiler would otherwise load the inputs of all groups once, and move them to the stack.
    asm("" : "+r"(x));
    Run::Pairs pairs[kTokens];
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) pairs[t] = kNoPairs();
    for (int first = 0; first < kGroups; first += kRun) {
      Run runs[kTokens];
      KVCACHE_UNROLL
      for (int g = 0; g < kRun; ++g) {
        const uint8x16_t w = WithSigns<kBytes>(vld1q_u8(quants + (first + g) * kLine + r * 16));
        KVCACHE_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          const int8x8_t inputs = FourTwice(x + t * kBlock + (first + g) * 4);
          if (g == 0) {
            runs[t].template Add<true>(w, inputs);
          } else {
            runs[t].template Add<false>(w, inputs);
          }
        }
        if (r == 0) each_group();
      }
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) runs[t].AddTo(pairs[t]);
    }
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[t][r] = vaddq_s32(sums[t][r], SumOf(pairs[t]));
  }
}

// Four groups of inputs from `kFrom` on, each with the four registers of its line.
template <Bytes kBytes, int kIndex, int kTokens, class EachGroup>
HWY_INLINE void AddFourGroups(const std::uint8_t* quants, const int8x16_t (&x)[kTokens],
                              int32x4_t (&sums)[kTokens][4], const EachGroup& each_group) {
  if constexpr (kIndex < 4) {
    uint8x16_t w[4];
    KVCACHE_UNROLL
    for (int r = 0; r < 4; ++r)
      w[r] = WithSigns<kBytes>(vld1q_u8(quants + kIndex * kLine + r * 16));
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVCACHE_UNROLL
      for (int r = 0; r < 4; ++r) sums[t][r] = AddSignedFours<kIndex>(sums[t][r], w[r], x[t]);
    }
    each_group();
    AddFourGroups<kBytes, kIndex + 1>(quants, x, sums, each_group);
  }
}

// Eight inputs of all rows and two tokens. `quants` are two lines of InterleaveLines.
HWY_INLINE void AddMatrices(const std::uint8_t* quants, int8x16_t x, int32x4_t (&sums)[8]) {
  KVCACHE_UNROLL
  for (int i = 0; i < 8; ++i) sums[i] = AddTwoByTwo(sums[i], vld1q_u8(quants + i * 16), x);
}

// The dot products of two tokens, which may be the same one, with lines of InterleaveLines.
template <int kGroups, int kPairs>
HWY_INLINE void AddPairsOfTokens(const std::uint8_t* quants, const Value* const (&x)[kPairs][2],
                                 int32x4_t (&sums)[kPairs][8]) {
  KVCACHE_UNROLL
  for (int g = 0; g < kGroups; g += 4) {
    int64x2_t both[kPairs][2];
    KVCACHE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(x[p][0] + g * 4));
      const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(x[p][1] + g * 4));
      both[p][0] = vzip1q_s64(a, b);
      both[p][1] = vzip2q_s64(a, b);
    }
    KVCACHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* const lines = quants + (g + 2 * half) * kLine;
      KVCACHE_UNROLL
      for (int i = 0; i < 8; ++i) {
        const uint8x16_t w = vld1q_u8(lines + i * 16);
        KVCACHE_UNROLL
        for (int p = 0; p < kPairs; ++p) {
          sums[p][i] = AddTwoByTwo(sums[p][i], w, vreinterpretq_s8_s64(both[p][half]));
        }
      }
    }
  }
}

// Puts eight inputs of a row side by side: each two lines of `lines` become two lines of `to`, which may be the same
// memory. Register i has rows 2 i and 2 i + 1.
HWY_INLINE void InterleaveLines(const std::uint8_t* lines, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t line = 0; line < count; line += 2) {
    uint32x4_t a[4];
    uint32x4_t b[4];
    KVCACHE_UNROLL
    for (int r = 0; r < 4; ++r) {
      a[r] = vreinterpretq_u32_u8(vld1q_u8(lines + line * kLine + r * 16));
      b[r] = vreinterpretq_u32_u8(vld1q_u8(lines + (line + 1) * kLine + r * 16));
    }
    KVCACHE_UNROLL
    for (int r = 0; r < 4; ++r) {
      std::uint8_t* const at = to + line * kLine + r * 32;
      vst1q_u8(at, vreinterpretq_u8_u32(vzip1q_u32(a[r], b[r])));
      vst1q_u8(at + 16, vreinterpretq_u8_u32(vzip2q_u32(a[r], b[r])));
    }
  }
}

template <Init kInit>
HWY_INLINE int32x4_t StartsOf(const std::int32_t* init, int first, int second) {
  if constexpr (kInit == Init::kZero) return vdupq_n_s32(0);
  const std::int32_t both[2] = {init[first], init[second]};
  const int32x2_t starts = vld1_s32(both);
  return vcombine_s32(starts, starts);
}

template <Init kInit, int kGroups, int kTokens>
HWY_INLINE void MultiplyMatrices(const std::uint8_t* quants, const Value* x,
                                 const std::int32_t* init, VI (&dots)[kTokens][4]) {
  constexpr int kPairs = (kTokens + 1) / 2;
  const Value* tokens[kPairs][2];
  int32x4_t sums[kPairs][8];
  KVCACHE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    const int first = 2 * p;
    const int second = std::min(2 * p + 1, kTokens - 1);
    tokens[p][0] = x + first * kBlock;
    tokens[p][1] = x + second * kBlock;
    const int32x4_t starts = StartsOf<kInit>(init, first, second);
    KVCACHE_UNROLL
    for (int i = 0; i < 8; ++i) sums[p][i] = starts;
  }
  AddPairsOfTokens<kGroups>(quants, tokens, sums);
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int32x4_t first = sums[t / 2][2 * r];
      const int32x4_t second = sums[t / 2][2 * r + 1];
      dots[t][r] = VI(t % 2 == 0 ? vuzp1q_s32(first, second) : vuzp2q_s32(first, second));
    }
  }
}

struct DoNothing {
  HWY_INLINE void operator()() const {}
};

// With Bytes::matrix, `quants` are lines of InterleaveLines.
template <Bytes kBytes, Init kInit, int kGroups, int kTokens, int kPanels, int kPanelRegs,
          class EachGroup = DoNothing>
HWY_INLINE void DotGroups(const std::uint8_t* const (&quants)[kPanels], const Value* x,
                          const std::int32_t* init, VI (&dots)[kPanels][kTokens][kPanelRegs],
                          const EachGroup& each_group = {}) {
  static_assert(kPanels == 1 && kPanelRegs == 4);
  if constexpr (kBytes.matrix) {
    MultiplyMatrices<kInit, kGroups>(quants[0], x, init, dots[0]);
    return;
  }
  int32x4_t sums[kTokens][4];
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < 4; ++r) sums[t][r] = vdupq_n_s32(kInit == Init::kZero ? 0 : init[t]);
  }
  if constexpr (kBytes.fours) {
    KVCACHE_UNROLL
    for (int g = 0; g < kGroups; g += 4) {
      int8x16_t inputs[kTokens];
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) inputs[t] = vld1q_s8(x + t * kBlock + g * 4);
      AddFourGroups<kBytes, 0>(quants[0] + g * kLine, inputs, sums, each_group);
    }
  } else {
    AddRuns<kBytes, kGroups>(quants[0], x, sums, each_group);
  }
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < 4; ++r) dots[0][t][r] = VI(sums[t][r]);
  }
}

template <OneTokenKind kKind>
class OneTokenDots {
 public:
  static constexpr bool kTakesFourfold = false;
  HWY_INLINE OneTokenDots(const Value* x, std::int32_t init) : x_(x) {
    const int32x4_t start = vdupq_n_s32(kKind.init == Init::kZero ? 0 : init);
    KVCACHE_UNROLL
    for (int r = 0; r < 4; ++r) {
      sums_[r] = start;
      pairs_[r] = kNoPairs();
    }
  }

  template <int kGroup, int kNth>
  HWY_INLINE void Put(int r, V8 bytes) {
    if constexpr (kIsWide) {
      const int8x16_t x = vld1q_s8(x_ + kGroup / 4 * 16);
      // A single sum would wait for its own last step.
      int32x4_t& sum = kNth % 2 == 0 ? sums_[r] : pairs_[r].low;
      sum = AddFours<kKind.bytes, kGroup % 4>(sum, bytes.raw, x);
    } else {
      constexpr int kRun = RunOf(kKind.bytes, kKind.groups);
      runs_[r].template Add<kNth % kRun == 0>(WithSigns<kKind.bytes>(bytes.raw),
                                              FourTwice(x_ + kGroup * 4));
      if constexpr (kNth % kRun == kRun - 1) runs_[r].AddTo(pairs_[r]);
    }
  }
  HWY_INLINE VI Dot(int r) const {
    return VI(vaddq_s32(sums_[r], kIsWide ? pairs_[r].low : SumOf(pairs_[r])));
  }

 private:
  static constexpr bool kIsWide = kKind.bytes.fours || kKind.bytes.matrix;

  const Value* x_;
  int32x4_t sums_[4];
  Run::Pairs pairs_[4];
  Run runs_[4];
};

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif

#endif  // per-target include guard
