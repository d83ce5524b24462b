// The products of common/block_dot-inl.h for AVX3 and AVX2, which multiply pairs of bytes and add each pair
// in 16 bits, and for AVX2 with AVX-VNNI, which adds the products of four bytes in 32 bits.
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_PAIRS_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_PAIRS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_PAIRS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cpu/common/block_bytes-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

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
HWY_INLINE Raw Quarter(Raw pairs) {
  return _mm512_srai_epi16(pairs, 2);
}
HWY_INLINE Raw ScalePairs(Raw pairs, Raw scales) {
  return _mm512_madd_epi16(pairs, scales);
}
HWY_INLINE Raw Spread(const std::uint8_t* sixteen, const std::uint8_t* to) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), LoadLine(to));
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
HWY_INLINE Raw Quarter(Raw pairs) {
  return _mm256_srai_epi16(pairs, 2);
}
HWY_INLINE Raw ScalePairs(Raw pairs, Raw scales) {
  return _mm256_madd_epi16(pairs, scales);
}
// Byte to[i] of 16 bytes, or 0 if that is above 127.
HWY_INLINE Raw Spread(const std::uint8_t* sixteen, const std::uint8_t* to) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), LoadLine(to));
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
  if (bytes.fours) return 1;
  const auto pair = static_cast<unsigned>(2 * bytes.max * MaxInput(bytes));
  return std::min(groups, static_cast<int>(std::bit_floor(32767U / pair)));
}

// Multiplies pairs of bytes with pairs of inputs, or of one of their digits, and adds as many of the
// 16-bit results as cannot overflow before it widens them and multiplies them by kScale. Adds to
// `sums` unless kFirst. AVX-VNNI needs none of this: it adds to `sums`, which must be set.
// Calls each_group() after each group, for prefetching.
template <Bytes kBytes, int kScale, bool kFirst, int kGroups, int kTokens, int kPanelRegs,
          class EachGroup>
HWY_INLINE void AddProducts(const std::uint8_t* quants, const Value* x,
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
        if constexpr (kBytes.fours) {
          sums[t][r] = AddFours(sums[t][r], w[r], inputs);
          continue;
        }
        const Raw product = MulBytes(w[r], inputs);
        pairs[t][r] = g % kRun == 0 ? product : AddPairs(pairs[t][r], product);
        if (g % kRun == kRun - 1) {
          const Raw wide = WidenPairs(pairs[t][r], kScale);
          sums[t][r] = kFirst && g < kRun ? wide : AddSums(sums[t][r], wide);
        }
      }
      if (kTokens == 1 || kBytes.fours) continue;
      if (g % kRun == kRun - 1) {
        LoadAfter(sums[t], x);
      } else {
        LoadAfter(pairs[t], x);
      }
    }
    each_group();
  }
}

// Whether the products of all groups are added in 16 bits, and the sums can be multiplied by scales then.
constexpr bool CanScaleSums(Bytes bytes, int groups) {
  return !bytes.fours && DigitsOf(bytes) == 1 && RunOf(bytes, groups) == groups;
}

// The scale of each row in the upper bytes of its two numbers of 16 bits: so it keeps its sign.
struct ScalePlaces {
  alignas(64) std::uint8_t at[kLine];
};
constexpr ScalePlaces MakeScalePlaces() {
  ScalePlaces places{};
  for (int i = 0; i < kLine; ++i) {
    places.at[i] = static_cast<std::uint8_t>(i % 2 == 1 ? i / 4 : 128);
  }
  return places;
}
inline constexpr ScalePlaces kScalePlaces = MakeScalePlaces();

template <OneTokenKind kKind>
class OneTokenDots {
 public:
  // Codes of two bits are four in a byte. Masks alone take the second and the fourth out of a byte and a byte
  // shifted by four; a quarter of their sum is added to that of the others.
  static constexpr bool kTakesFourfold =
      kKind.pairs_of_bits && CanScaleSums({4 * kKind.bytes.max, kKind.bytes.fours}, kKind.groups);

  HWY_INLINE OneTokenDots(const Value* x, std::int32_t init) : x_(x), init_(init) {}

  // REQUIRES: kKind.scaled, and before Put. The scales of 16 rows, as signed bytes.
  HWY_INLINE void SetScales(const std::uint8_t* scales) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r)
      scales_[r] = Spread(scales, kScalePlaces.at + r * kVectorBytes);
  }

  template <int kGroup, int kNth>
  HWY_INLINE void Put(int r, V8 bytes) {
    if constexpr (kBytes.fours) {
      std::int32_t four;
      std::memcpy(&four, x_ + kGroup * 4, 4);
      // A single sum would wait for its own last step.
      Raw& sum = kNth % 2 == 0 ? sums_[r] : pairs_[0][r];
      sum = AddFours(kNth < 2 ? SetFour(0) : sum, bytes.raw, SetFour(four));
    } else if constexpr (kTakesFourfold) {
      PutFourfold<kGroup, kNth>(r, bytes);
    } else {
      PutPairs<kGroup, kNth>(r, bytes);
    }
  }
  HWY_INLINE VI Dot(int r) const {
    const Raw sum = kBytes.fours ? AddSums(sums_[r], pairs_[0][r]) : sums_[r];
    constexpr bool kIsOpen = kKind.init == Init::kCorrections && !kKind.scaled;
    return VI{kIsOpen ? AddSums(sum, SetFour(init_)) : sum};
  }

 private:
  static constexpr Bytes kBytes = kKind.bytes;

  template <int kGroup, int kNth>
  HWY_INLINE void PutPairs(int r, V8 bytes) {
    constexpr int kRun = RunOf(kBytes, kKind.groups);
    KVCACHE_UNROLL
    for (int digit = 0; digit < kCount; ++digit) {
      std::int32_t four;
      std::memcpy(&four, x_ + digit * kBlock + kGroup * 4, 4);
      Raw& pairs = pairs_[digit][r];
      const Raw product = MulBytes(bytes.raw, SetFour(four));
      pairs = kNth % kRun == 0 ? product : AddPairs(pairs, product);
      if constexpr (kNth % kRun == kRun - 1) {
        const Raw wide = Widen(r, pairs, digit == 0 ? 1 : 16);
        sums_[r] = kNth < kRun && digit == 0 ? wide : AddSums(sums_[r], wide);
      }
    }
    if (kNth % 2 == 1 && r == kPanelRegs - 1)
      LoadAfter(kNth % kRun == kRun - 1 ? sums_ : pairs_[kCount - 1], x_);
  }

  // Bytes of odd groups are four times the weights.
  template <int kGroup, int kNth>
  HWY_INLINE void PutFourfold(int r, V8 bytes) {
    std::int32_t four;
    std::memcpy(&four, x_ + kGroup * 4, 4);
    Raw& pairs = kNth % 2 == 0 ? pairs_[0][r] : sums_[r];
    const Raw product = MulBytes(bytes.raw, SetFour(four));
    pairs = kNth < 2 ? product : AddPairs(pairs, product);
    if constexpr (kNth == kKind.groups - 1) {
      sums_[r] = Widen(r, AddPairs(pairs_[0][r], Quarter(sums_[r])), 1);
    }
    if (kNth % 2 == 1 && r == kPanelRegs - 1) LoadAfter(sums_, x_);
  }

  HWY_INLINE Raw Widen(int r, Raw pairs, std::int16_t factor) const {
    if constexpr (kKind.scaled) {
      constexpr bool kStarts = kKind.init == Init::kCorrections;
      return ScalePairs(kStarts ? AddPairs(pairs, SetFour(init_ & 0xffff)) : pairs, scales_[r]);
    } else {
      return WidenPairs(pairs, factor);
    }
  }

  static constexpr int kCount = DigitsOf(kBytes);
  const Value* x_;
  std::int32_t init_;
  Raw pairs_[kCount][kPanelRegs];
  Raw sums_[kPanelRegs];
  Raw scales_[kPanelRegs];
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
    AddProducts<kBytes, 1, false, kGroups>(quants[0], x, sums, each_group);
  } else {
    AddProducts<kBytes, 1, true, kGroups>(quants[0], x, sums, each_group);
    if constexpr (DigitsOf(kBytes) == 2) {
      AddProducts<kBytes, 16, false, kGroups>(quants[0], x + kBlock, sums, each_group);
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

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif

#endif  // per-target include guard
