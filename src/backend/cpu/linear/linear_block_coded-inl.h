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

#include "backend/cpu/linear/linear_block_unpack-inl.h"
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

// factor × the nibble at bit kShift, for 16 rows.
template <int kShift>
HWY_INLINE RowFactors TimesNibbles(const RowFactors& factors, const std::uint8_t* small) {
  const DF d;
  const DI di;
  RowFactors products;
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) {
    const VI bytes =
        hn::PromoteTo(di, hn::LoadU(hn::Rebind<std::uint8_t, DF>(), small + r * kLanes));
    const VI nibble = hn::And(hn::ShiftRight<kShift>(bytes), hn::Set(di, 15));
    products.r[r] = hn::Mul(factors.r[r], hn::ConvertTo(d, nibble));
  }
  return products;
}

// d, then signed bytes; ternary types have none.
template <DType kType>
class SignedScales {
 public:
  explicit HWY_INLINE SignedScales(const std::uint8_t* chunk)
      : small_(chunk + 2 * kPanelRows),
        d_(TimesConstant(LoadFactors(chunk), codec::CodeTypeOf(kType).factor)) {}
  HWY_INLINE RowFactors Scales(std::int64_t i) const {
    if constexpr (LayoutOf(kType).head_bytes * kChunkBlocks == 2 * kPanelRows) return d_;
    return Times(d_, reinterpret_cast<const std::int8_t*>(small_) + i * kPanelRows);
  }

 private:
  const std::uint8_t* small_;
  RowFactors d_;
};

// d, dmin, then nibbles of scales and minima. Minima(i) are divided by 128.
class NibbleScales {
 public:
  explicit HWY_INLINE NibbleScales(const std::uint8_t* chunk)
      : small_(chunk + 4 * kPanelRows),
        d_(LoadFactors(chunk)),
        minimum_(TimesConstant(LoadFactors(chunk + 2 * kPanelRows), 0x1p-7f)) {}
  HWY_INLINE RowFactors Scales(std::int64_t i) const {
    return TimesNibbles<0>(d_, small_ + i * kPanelRows);
  }
  HWY_INLINE RowFactors Minima(std::int64_t i) const {
    return TimesNibbles<4>(minimum_, small_ + i * kPanelRows);
  }

 private:
  const std::uint8_t* small_;
  RowFactors d_;
  RowFactors minimum_;
};

// Floats of eight bits without a sign.
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
      // The exponents' biases differ by 120; half of that because the table is doubled.
      scales.r[r] = hn::Mul(shifted, hn::Set(DF(), 0x1p119f));
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

  template <int kPart, class Out>
  static HWY_INLINE void Unpack(const std::uint8_t* lines, Out& out) {
    if constexpr (kCode.bits == 4) {
      UnpackNibbles<0>(lines + kPart * kApart * kLine, out);
    } else if constexpr (kGroups == 4) {
      UnpackPairs<kPart, 0>(lines, out);
    } else {
      UnpackPairs<0, 0>(lines, out);
      UnpackPairs<1, 4>(lines, out);
    }
  }

 private:
  static constexpr int kGroups = GroupsOf(kProduct.chain);
  static constexpr int kApart = kGroups / 2;
  static constexpr int kHighLines = kCode.bits == 3 ? 1 : 0;

  // Whether bytes are their codes, and no table is needed.
  static constexpr bool kIsIdentity = IsIdentity(kCode, kProduct.bias);

  // Codes of three bits are looked up by indices of two forms, since a table has room for both positions of a
  // part, and neighbouring groups then share shifts:
  //   low    the lower bits in bits 0 and 1, the third in bit 2: the code itself
  //   high   the lower bits in bits 2 and 3, the third in bit 1
  enum class Index : std::uint8_t { kLow, kHigh };

  template <Index kIndex>
  static constexpr std::array<std::uint8_t, 16> BytesOfIndices() {
    std::array<std::uint8_t, 16> bytes{};
    for (std::size_t i = 0; i < 16; ++i) {
      const std::size_t code = kIndex == Index::kLow ? i : (i >> 2 & 3) | (i >> 1 & 1) << 2;
      const int value = kCode.table[code % (std::size_t{1} << kCode.bits)];
      bytes[i] = static_cast<std::uint8_t>(value + kProduct.bias);
    }
    return bytes;
  }

  template <Index kIndex = Index::kLow>
  static HWY_INLINE V8 LookUp(V8 indices) {
    alignas(16) static constexpr std::array<std::uint8_t, 16> kBytes = BytesOfIndices<kIndex>();
    if constexpr (kIsIdentity) return indices;
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
  static HWY_INLINE void UnpackPairs(const std::uint8_t* lines, Out& out) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const D8 d;
      const V8 low = hn::Load(d, lines + (kHighLines + kHalf) * kLine + r * kVectorBytes);
      const V8 high = kHighLines == 0 ? hn::Zero(d) : hn::Load(d, lines + r * kVectorBytes);
      PutPair<kHalf, kFirst, 0>(r, low, high, out);
      PutPair<kHalf, kFirst, 1>(r, low, high, out);
      PutPair<kHalf, kFirst, 2>(r, low, high, out);
      PutPair<kHalf, kFirst, 3>(r, low, high, out);
    }
  }

  template <int kHalf, int kFirst, int kGroup, class Out>
  static HWY_INLINE void PutPair(int r, V8 low, V8 high, Out& out) {
    constexpr int kThird = 4 * kHalf + kGroup;  // the third bit's place
    constexpr bool kIsHigh = kHighLines > 0 && !kIsIdentity && kGroup % 2 == 1;
    constexpr Index kIndex = kIsHigh ? Index::kHigh : Index::kLow;
    V8 indices = kIsHigh ? ShiftedBits<2 - 2 * kGroup>(low, 12) : ShiftedBits<-2 * kGroup>(low, 3);
    if constexpr (kHighLines > 0) {
      constexpr int kTo = kIsHigh ? 1 : 2;
      indices = hn::Or(indices, ShiftedBits<kTo - kThird>(high, 1 << kTo));
    }
    out.template Put<kFirst + kGroup, kFirst + kGroup>(r, LookUp<kIndex>(indices));
  }
};

template <DType kType>
struct Format : CodedBlocks<kType> {};

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
