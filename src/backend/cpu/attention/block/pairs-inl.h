// Dot products of keys of block types with queries, for AVX3 and AVX2: with products of pairs of bytes, or
// with AVX-VNNI's of four (common/block_pairs-inl.h).
//
// Codes of q4_0 are taken from their halves of bytes in registers, and both digits of a query are multiplied
// while a line of keys is in registers.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_PAIRS_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_PAIRS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_PAIRS_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/simd/highway-inl.h"
#include "backend/cpu/simd/simd-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

using KeyRegister = block::HWY_NAMESPACE::Raw;

// Register `v` of line `group` of a block's eight: the values 4 group … 4 group + 3 of each of kLanes cells.
template <DType kType>
HWY_INLINE KeyRegister LoadKeys(const std::uint8_t* block, int group, int v) {
  const hn::Repartition<std::uint16_t, DF> d;
  const int line = kType == DType::kQ8_0 ? group : group % 4;
  const auto codes =
      hn::LoadU(d, reinterpret_cast<const std::uint16_t*>(block + line * 64 + v * kLanes * 4));
  if constexpr (kType == DType::kQ8_0) return codes.raw;
  return hn::And(group < 4 ? codes : hn::ShiftRight<4>(codes), hn::Set(d, 0x0f0f)).raw;
}

// The rows whose sums fit into the registers.
constexpr int KeyRowsInRegisters(block::HWY_NAMESPACE::Bytes bytes) {
  return HWY_TARGET == HWY_AVX2 && block::HWY_NAMESPACE::DigitsOf(bytes) == 2 ? 2 : 4;
}

// dots[0][r] = init[r] + Σ code × query over a block, for kRows rows. Row r's codes begin at x + r × 32, or at twice
// that with two digits. Calls each_group() after each of the eight groups, for prefetching.
template <DType kType, block::HWY_NAMESPACE::Bytes kBytes, int kRows, class EachGroup>
HWY_INLINE void DotKeys(const std::uint8_t* block, const std::int8_t* x, const std::int32_t* init,
                        block::HWY_NAMESPACE::VI (&dots)[1][kRows][kRegs],
                        const EachGroup& each_group) {
  constexpr int kDigits = block::HWY_NAMESPACE::DigitsOf(kBytes);
  static_assert(kBytes.fours || block::HWY_NAMESPACE::RunOf(kBytes, 8) == 8);
  KeyRegister sums[kDigits][kRows][kRegs];
  if constexpr (kBytes.fours) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KVCACHE_UNROLL
      for (int v = 0; v < kRegs; ++v) sums[0][r][v] = block::HWY_NAMESPACE::SetFour(init[r]);
    }
  }
  KVCACHE_UNROLL
  for (int g = 0; g < 8; ++g) {
    KeyRegister keys[kRegs];
    KVCACHE_UNROLL
    for (int v = 0; v < kRegs; ++v) keys[v] = LoadKeys<kType>(block, g, v);
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KVCACHE_UNROLL
      for (int digit = 0; digit < kDigits; ++digit) {
        std::int32_t four;
        std::memcpy(&four, x + (r * kDigits + digit) * kKvBlock + g * 4, 4);
        const KeyRegister query = block::HWY_NAMESPACE::SetFour(four);
        KVCACHE_UNROLL
        for (int v = 0; v < kRegs; ++v) {
          KeyRegister& sum = sums[digit][r][v];
          if constexpr (kBytes.fours) {
            sum = block::HWY_NAMESPACE::AddFours(sum, keys[v], query);
          } else {
            const KeyRegister products = block::HWY_NAMESPACE::MulBytes(keys[v], query);
            sum = g == 0 ? products : block::HWY_NAMESPACE::AddPairs(sum, products);
          }
        }
      }
      if constexpr (kBytes.fours) continue;
      KVCACHE_UNROLL
      for (int digit = 0; digit < kDigits; ++digit) {
        block::HWY_NAMESPACE::LoadAfter(sums[digit][r], x);
      }
    }
    each_group();
  }
  KVCACHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kRegs; ++v) {
      KeyRegister sum = sums[0][r][v];
      if constexpr (!kBytes.fours) {
        sum = block::HWY_NAMESPACE::AddSums(block::HWY_NAMESPACE::WidenPairs(sum),
                                            block::HWY_NAMESPACE::SetFour(init[r]));
      }
      if constexpr (kDigits == 2) {
        sum =
            block::HWY_NAMESPACE::AddSums(sum, block::HWY_NAMESPACE::WidenPairs(sums[1][r][v], 16));
      }
      dots[0][r][v] = block::HWY_NAMESPACE::VI{sum};
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif

#endif  // per-target include guard
