// The formats of the types that hold codes of 2 to 4 bits (tensor/coded_block.h): a weight's byte is an
// entry of a table of up to 16 bytes, which is a register.
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_CODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_CODED_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_CODED_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_CODED_INL_H_
#endif

#include <algorithm>
#include <array>
#include <type_traits>

#include "backend/cpu/linear/block/unpack-inl.h"
#include "tensor/coded_block.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

constexpr Chain CodedChainOf(DType type) {
  const bool of_16 = codec::CodeTypeOf(type).sub == 16;
  if (type == DType::kNVFP4) return Chain::kPer16;
  if (type == DType::kIQ4_NL) return Chain::kPer32;
  if (type == DType::kQ2_K) return Chain::kPer256Of16WithMinimum;
  return of_16 ? Chain::kPer256Of16 : Chain::kPer256;
}

constexpr ProductKind CodedProductOf(DType type) {
  const codec::CodeType code = codec::CodeTypeOf(type);
  const auto [least, most] =
      std::minmax_element(code.table.begin(), code.table.begin() + (1 << code.bits));
  const int range = *most - *least;
  if (range > 127) return {CodedChainOf(type), 128, {kAnyByte}};
  return KindOf(CodedChainOf(type), -*least, range);
}

// Returns whether the byte of each code, its value plus `bias`, is the code.
constexpr bool IsIdentity(const codec::CodeType& type, int bias) {
  for (int code = 0; code < 1 << type.bits; ++code) {
    if (type.table[static_cast<std::size_t>(code)] + bias != code) return false;
  }
  return true;
}

// ---- Heads

HWY_INLINE RowFactors TimesConstant(RowFactors factors, float constant) {
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) {
    factors.r[r] = hn::Mul(factors.r[r], hn::Set(DF(), constant));
  }
  return factors;
}

// d, then signed bytes; ternary types have none.
template <DType kType>
class SignedScales {
  static constexpr bool kHasSmall = LayoutOf(kType).head_bytes * kChunkBlocks > 2 * kPanelRows;

 public:
  explicit HWY_INLINE SignedScales(const std::uint8_t* chunk)
      : small_(chunk + 2 * kPanelRows),
        d_(TimesConstant(LoadFactors(chunk), codec::CodeTypeOf(kType).factor)),
        unit_(TimesConstant(d_, 0x1p-8f)) {}
  HWY_INLINE RowFactors Scales(std::int64_t i) const {
    if constexpr (!kHasSmall) {
      // GCC copies a struct in halves of registers, through memory: then the next load waits for two stores.
      RowFactors copy;
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) copy.r[r] = d_.r[r];
      return copy;
    }
    return Times(d_, reinterpret_cast<const std::int8_t*>(small_) + i * kPanelRows);
  }
  // Scales as signed bytes, and what 1/256 of them is multiplied with.
  HWY_INLINE const std::uint8_t* SmallScales(std::int64_t i) const requires(kHasSmall) {
    return small_ + i * kPanelRows;
  }
  HWY_INLINE const RowFactors& Unit() const { return unit_; }

 private:
  const std::uint8_t* small_;
  RowFactors d_;
  RowFactors unit_;
};

// d, dmin, then nibbles of scales and minima. Minima(i) are divided by 128.
class NibbleScales {
 public:
  explicit HWY_INLINE NibbleScales(const std::uint8_t* chunk)
      : d_(LoadFactors(chunk)),
        unit_(TimesConstant(d_, 0x1p-8f)),
        minimum_(TimesConstant(LoadFactors(chunk + 2 * kPanelRows), 0x1p-7f)) {
    const D8 d;
    for (int i = 0; i < kBytes; i += kVectorBytes) {
      const V8 both = hn::Load(d, chunk + 4 * kPanelRows + i);
      hn::Store(ShiftedBits<0>(both, 15), d, scales_ + i);
      hn::Store(ShiftedBits<-4>(both, 15), d, minima_ + i);
    }
  }
  HWY_INLINE RowFactors Scales(std::int64_t i) const { return Times(d_, SmallScales(i)); }
  HWY_INLINE RowFactors Minima(std::int64_t i) const {
    return Times(minimum_, minima_ + i * kPanelRows);
  }
  // Scales as bytes, and what 1/256 of them is multiplied with.
  HWY_INLINE const std::uint8_t* SmallScales(std::int64_t i) const {
    return scales_ + i * kPanelRows;
  }
  HWY_INLINE const RowFactors& Unit() const { return unit_; }

 private:
  static constexpr int kBytes = static_cast<int>(kChunk / 16 * kPanelRows);

  RowFactors d_;
  RowFactors unit_;
  RowFactors minimum_;
  alignas(64) std::uint8_t scales_[kBytes];
  alignas(64) std::uint8_t minima_[kBytes];
};

// Floats of eight bits without a sign, with five bits of exponent: normal numbers or 0.
class EightBitScales {
 public:
  explicit HWY_INLINE EightBitScales(const std::uint8_t* chunk) : chunk_(chunk) {}
  HWY_INLINE RowFactors Scales(std::int64_t i) const {
    const DI d;
    RowFactors scales;
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const hn::Rebind<std::uint8_t, DF> d8;
      const VI bits = hn::PromoteTo(d, hn::LoadU(d8, chunk_ + i * kPanelRows + r * kLanes));
      const VF shifted = hn::BitCast(DF(), hn::ShiftLeft<20>(bits));
      // The exponents' biases differ by 117; half of that because the table is doubled.
      scales.r[r] = hn::Mul(shifted, hn::Set(DF(), 0x1p116f));
    }
    return scales;
  }

 private:
  const std::uint8_t* chunk_;
};

template <DType kType>
struct CodedHead : std::type_identity<SignedScales<kType>> {};
template <>
struct CodedHead<DType::kQ2_K> : std::type_identity<NibbleScales> {};
template <>
struct CodedHead<DType::kNVFP4> : std::type_identity<EightBitScales> {};
template <>
struct CodedHead<DType::kIQ4_NL> : std::type_identity<FloatScales<DType::kIQ4_NL>> {};

// ---- Codes

template <DType kDType>
struct CodedBlocks {
  static constexpr DType kType = kDType;
  static constexpr codec::CodeType kCode = codec::CodeTypeOf(kType);
  static constexpr ProductKind kProduct = CodedProductOf(kType);
  using Head = typename CodedHead<kType>::type;

  // Whether a byte holds four weights, each minus the bias.
  static constexpr bool kIsPairsOfBits = kCode.bits == 2 && IsIdentity(kCode, kProduct.bias);

  template <int kPart, class Out>
  static HWY_INLINE void Unpack(const std::uint8_t* lines, Out& out) {
    if constexpr (kCode.bits == 4) {
      UnpackNibbles<0>(lines + kPart * kApart * kLine, out);
    } else if constexpr (kGroups == 4) {
      UnpackHalf<kPart, 0>(lines, out);
    } else {
      UnpackHalf<0, 0>(lines, out);
      UnpackHalf<1, 4>(lines, out);
    }
  }

 private:
  static constexpr int kGroups = GroupsOf(kProduct.chain);
  static constexpr int kApart = kGroups / 2;

  // Whether bytes are their codes, and no table is needed.
  static constexpr bool kIsIdentity = IsIdentity(kCode, kProduct.bias);

  // Bit 3 of an index of a smaller code does not matter.
  static constexpr std::array<std::uint8_t, 16> BytesOfIndices() {
    std::array<std::uint8_t, 16> bytes{};
    for (std::size_t i = 0; i < 16; ++i) {
      const int value = kCode.table[i % (std::size_t{1} << kCode.bits)];
      bytes[i] = static_cast<std::uint8_t>(value + kProduct.bias);
    }
    return bytes;
  }

  static HWY_INLINE V8 LookUp(V8 indices) {
    alignas(16) static constexpr std::array<std::uint8_t, 16> kBytes = BytesOfIndices();
    return hn::TableLookupBytes(hn::LoadDup128(D8(), kBytes.data()), indices);
  }

  // Line kGroup of the part, then the next ones.
  template <int kGroup, class Out>
  static HWY_INLINE void UnpackNibbles(const std::uint8_t* lines, Out& out) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const V8 nibbles = hn::Load(D8(), lines + kGroup * kLine + r * kVectorBytes);
      out.template Put<kGroup, 2 * kGroup>(r, LookUp(ShiftedBits<0>(nibbles, 15)));
      out.template Put<kGroup + kApart, 2 * kGroup + 1>(r, LookUp(ShiftedBits<-4>(nibbles, 15)));
    }
    if constexpr (kGroup + 1 < kApart) UnpackNibbles<kGroup + 1>(lines, out);
  }

  // Four groups of half kHalf of 32 inputs, to the groups from kFirst on.
  template <int kHalf, int kFirst, class Out>
  static HWY_INLINE void UnpackHalf(const std::uint8_t* lines, Out& out) {
    const D8 d;
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      if constexpr (kCode.bits == 2) {
        const V8 pairs = hn::Load(d, lines + kHalf * kLine + r * kVectorBytes);
        if constexpr (Out::kTakesFourfold) {
          const V8 upper = Shifted<-4>(pairs);
          out.template Put<kFirst + 0, kFirst + 0>(r, ShiftedBits<0>(pairs, 3));
          out.template Put<kFirst + 1, kFirst + 1>(r, ShiftedBits<0>(pairs, 12));
          out.template Put<kFirst + 2, kFirst + 2>(r, ShiftedBits<0>(upper, 3));
          out.template Put<kFirst + 3, kFirst + 3>(r, ShiftedBits<0>(upper, 12));
          continue;
        }
        PutPair<kFirst, 0>(r, pairs, out);
        PutPair<kFirst, 1>(r, pairs, out);
        PutPair<kFirst, 2>(r, pairs, out);
        PutPair<kFirst, 3>(r, pairs, out);
      } else {
        const V8 first = hn::Load(d, lines + r * kVectorBytes);
        const V8 second = hn::Load(d, lines + kLine + r * kVectorBytes);
        const V8 third = hn::Load(d, lines + 2 * kLine + r * kVectorBytes);
        PutThree<kHalf, kFirst + 0>(r, WithoutFourth(first), out);
        PutThree<kHalf, kFirst + 1>(r, WithoutFourth(second), out);
        PutThree<kHalf, kFirst + 2>(r, WithoutFourth(third), out);
        PutThree<kHalf, kFirst + 3>(r, Fourth(first, second, third), out);
      }
    }
  }

  template <int kFirst, int kGroup, class Out>
  static HWY_INLINE void PutPair(int r, V8 pairs, Out& out) {
    const V8 codes = ShiftedBits<-2 * kGroup>(pairs, 3);
    out.template Put<kFirst + kGroup, kFirst + kGroup>(r, kIsIdentity ? codes : LookUp(codes));
  }

  // Three codes of three bits are in nibbles, whose bits 3 are those of a fourth. Both halves of a line are taken
  // apart at once; the compiler does it once for 32 inputs.
  static HWY_INLINE V8 WithoutFourth(V8 nibbles) {
    return kIsIdentity ? nibbles : ShiftedBits<0>(nibbles, 0x77);
  }
  // (a + b + 1) / 2, rounded down, shifts and joins bits: a + b is even.
  static HWY_INLINE V8 Fourth(V8 first, V8 second, V8 third) {
    const V8 lowest = hn::AverageRound(ShiftedBits<0>(first, 0x88), hn::Zero(D8()));
    const V8 lower = hn::AverageRound(lowest, ShiftedBits<0>(second, 0x88));
    return hn::AverageRound(lower, ShiftedBits<0>(third, 0x88));
  }

  // Bits 3 and 7 of `nibbles` are zero, and so is bit 7 of the indices. The look-up of x86-64 needs that; bits 4 to
  // 6 do not matter to it.
  template <int kHalf, int kGroup, class Out>
  static HWY_INLINE void PutThree(int r, V8 nibbles, Out& out) {
    constexpr bool kIgnoresHighBits = HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128;
    V8 indices = Shifted<-4 * kHalf>(nibbles);
    if constexpr (!kIgnoresHighBits && !kIsIdentity) indices = ShiftedBits<0>(indices, 15);
    out.template Put<kGroup, kGroup>(r, kIsIdentity ? ShiftedBits<0>(indices, 7) : LookUp(indices));
  }
};

template <DType kType>
struct Format : CodedBlocks<kType> {};

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
