// What the products of bytes with inputs have in common (common/block_dot-inl.h).
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_BYTES_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_BYTES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_BYTES_INL_H_
#endif

#include "backend/cpu/linear/block/linear_block.h"
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

// Where the sums of integers start whose products with a scale SumScales computes: the bits of 1.5 · 2^23.
// The bits of a sum are then those of the float 12582912 + sum.
inline constexpr std::int32_t kSumStart = 0x4B400000;

// The product of sums of integers and scales, rounded once: scaled(isum, d) of docs/design/exactness.md.
class SumScales {
 public:
  explicit HWY_INLINE SumScales(VF scales)
      : scales_(scales), start_(hn::Mul(scales, hn::Set(DF(), -12582912.0f))) {}

  // `sums` began at kStart, which is kSumStart or, where that would take an addition, 0.
  template <std::int32_t kStart = kSumStart>
  HWY_INLINE VF Times(VI sums) const {
    static_assert(kStart == kSumStart || kStart == 0);
    if constexpr (kStart == 0) return hn::Mul(hn::ConvertTo(DF(), sums), scales_);
#if HWY_TARGET == HWY_EMU128
    // Without fused multiply-add, the other form rounds too early.
    return hn::Mul(hn::ConvertTo(DF(), hn::Sub(sums, hn::Set(DI(), kSumStart))), scales_);
#else
    return hn::MulAdd(hn::BitCast(DF(), sums), scales_, start_);
#endif
  }

 private:
  VF scales_;
  VF start_;
};

inline constexpr int kAnyByte = 255;

// The bytes of a product.
struct Bytes {
  int max;              // no byte exceeds it
  bool fours = false;   // AVX2: uses AVX-VNNI; NEON: SDOT
  bool matrix = false;  // NEON: uses USMMLA and USDOT
};

// Whether 128 is taken from the bytes, because the products are of signed bytes. A product needs no correction by 128
// then.
constexpr bool FlipsSigns(Bytes bytes) {
  return HWY_ARCH_ARM_A64 && bytes.max > 127 && !bytes.matrix;
}

// The number of digits of an input that is multiplied with such bytes.
constexpr int DigitsOf(Bytes bytes) {
  constexpr bool kPairs = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3;
  return kPairs && !bytes.fours && bytes.max > 127 ? 2 : 1;
}

// What OneTokenDots computes.
struct OneTokenKind {
  Bytes bytes;
  Init init;
  int groups;
  // Whether the weights are codes of two bits, which OneTokenDots may take with odd groups multiplied by four:
  // kTakesFourfold says so.
  bool pairs_of_bits = false;
  // Whether sums are multiplied by scales of 16 rows, and by 256.
  bool scaled = false;
};

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
