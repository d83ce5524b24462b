// Unpacks a chunk of a panel to bytes and f32 scales. All differences between the formats are here.
//
// Compiled once per target. Format<DType>, one per type, has
//   kProduct  the chain of docs/design/exactness.md that computes its outputs, and its bytes
//   Head      the head of a chunk: Scales(i) and, for the chains that have them, Minima(i) of the
//             i-th inputs that share a scale
//   Unpack    <i> unpacks the i-th inputs that share a scale, of 32 inputs
//
// Unpacking costs about as much as multiplying three tokens. For several tokens it is done once for
// all tokens of a group, and its result stays in the first-level cache. For one token it stays in
// registers.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_
#endif

#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/common/block_layout.h"
#include "backend/cpu/simd/simd-inl.h"
#include "hwy/cache_control.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using cpu::HWY_NAMESPACE::LoadF16;

enum class Chain : std::uint8_t {
  kPer16,                  // as kPer32 for each 16 inputs
  kPer32,                  // y = fma(dot · d_w, d_x, y) for each 32 inputs, the product rounded
  kPer32WithMinimum,       // and y = fma(m_w, d_x · Σ q_x, y)
  kPer256,                 // as kPer256WithMinimum without minima
  kPer256WithMinimum,      // a = fma(float(dot), s, a), a = fma(-minimum, Σ q_x, a) for each 32
                           // inputs from a = +0, then y = fma(a, d_x, y) for each 256
  kPer256Of16,             // as kPer256 with scales per 16 inputs
  kPer256Of16WithMinimum,  // as kPer256WithMinimum with scales and minima per 16 inputs
};

constexpr bool HasMinima(Chain chain) {
  return chain == Chain::kPer32WithMinimum || chain == Chain::kPer256WithMinimum ||
         chain == Chain::kPer256Of16WithMinimum;
}
constexpr bool IsPer256(Chain chain) {
  return chain >= Chain::kPer256;
}
// Groups of four inputs that share a scale.
constexpr int GroupsOf(Chain chain) {
  const bool of_16 = chain == Chain::kPer16 || chain == Chain::kPer256Of16 ||
                     chain == Chain::kPer256Of16WithMinimum;
  return of_16 ? 4 : 8;
}
// The parts of 32 inputs that have a scale of their own.
constexpr int PartsOf(Chain chain) {
  return kBlock / 4 / GroupsOf(chain);
}

// What a product has to know of a format. A weight is its byte minus `bias`.
struct ProductKind {
  Chain chain;
  int bias;
  Bytes bytes;
};

// With int8 dot products all formats have the same bytes, and so the same products. Other targets
// add more products of small bytes in 16 bits.
inline constexpr bool kSameBytes = HWY_TARGET == HWY_AVX3_DL;
constexpr ProductKind KindOf(Chain chain, int bias, int max_byte) {
  if (!kSameBytes || (IsPer256(chain) && HasMinima(chain))) return {chain, bias, {max_byte}};
  return {chain, 128, {kAnyByte}};
}

// An unpacked chunk of a panel.
struct Unpacked {
  // [group of four inputs][16 rows][4]. Bytes::matrix: [group of eight inputs][16 rows][8]
  const std::uint8_t* quants;
  const float* scales;  // [32 inputs, or 16][16 rows]
  const float* minima;  // as scales, for the chains that have them; of Q2_K: 1/128 of them
};

struct ChunkWorkspace {
  alignas(64) std::uint8_t quants[kChunk * kPanelRows];
  alignas(64) float scales[kChunk / 16 * kPanelRows];
  alignas(64) float minima[kChunk / 16 * kPanelRows];
};

// ---- Bits

// Shifts every byte to the left, or to the right if kLeft is negative. Bits of neighbouring bytes
// are shifted in; the caller masks them.
template <int kLeft>
HWY_INLINE V8 Shifted(V8 v) {
  const hn::Repartition<std::uint16_t, D8> d16;
  if constexpr (kLeft > 0) {
    return hn::BitCast(D8(), hn::ShiftLeft<kLeft>(hn::BitCast(d16, v)));
  } else if constexpr (kLeft < 0) {
    return hn::BitCast(D8(), hn::ShiftRight<-kLeft>(hn::BitCast(d16, v)));
  } else {
    return v;
  }
}

template <int kLeft>
HWY_INLINE V8 ShiftedBits(V8 v, std::uint8_t mask) {
  return hn::And(Shifted<kLeft>(v), hn::Set(D8(), mask));
}

// The bytes that Format::Unpack makes go to an object with Put<kGroup, kNth>(r, bytes): register r of
// group kGroup, the kNth group in order. A product of one token takes them from registers
// (OneTokenDots); a product of several reads them from memory.
struct ToMemory {
  static constexpr bool kTakesFourfold = false;
  std::uint8_t* out;
  template <int kGroup, int /*kNth*/>
  HWY_INLINE void Put(int r, V8 bytes) const {
    hn::Store(bytes, D8(), out + kGroup * kLine + r * kVectorBytes);
  }
};

// Unpacks a line of nibbles: the lower ones to group kGroup, the upper ones to group
// kGroup + kApart. Puts kHighBits bits from `high` above each nibble and adds kOffset.
template <int kGroup, int kApart, int kHighBits, int kOffset, class Out>
HWY_INLINE void UnpackLine(const std::uint8_t* line, const V8 (&high)[kPanelRegs], Out& out) {
  const D8 d;
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) {
    const V8 nibbles = hn::Load(d, line + r * kVectorBytes);
    V8 low_group = ShiftedBits<0>(nibbles, 15);
    V8 high_group = ShiftedBits<-4>(nibbles, 15);
    if constexpr (kHighBits > 0) {
      constexpr auto kMask = static_cast<std::uint8_t>(((1 << kHighBits) - 1) << 4);
      low_group = hn::Or(low_group, ShiftedBits<4 - kGroup * kHighBits>(high[r], kMask));
      high_group =
          hn::Or(high_group, ShiftedBits<4 - (kGroup + kApart) * kHighBits>(high[r], kMask));
    }
    if constexpr (kOffset > 0) {
      low_group = hn::Add(low_group, hn::Set(d, static_cast<std::uint8_t>(kOffset)));
      high_group = hn::Add(high_group, hn::Set(d, static_cast<std::uint8_t>(kOffset)));
    }
    out.template Put<kGroup, 2 * kGroup>(r, low_group);
    out.template Put<kGroup + kApart, 2 * kGroup + 1>(r, high_group);
  }
}

template <int kHighBits>
HWY_INLINE void LoadHighBits(const std::uint8_t* line, V8 (&high)[kPanelRegs]) {
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) {
    high[r] = kHighBits > 0 ? hn::Load(D8(), line + r * kVectorBytes) : hn::Zero(D8());
  }
}

// 32 inputs of four bits, or five.
template <int kHighBits, int kOffset, class Out>
HWY_INLINE void UnpackBits(const std::uint8_t* lines, Out& out) {
  V8 high[kPanelRegs];
  LoadHighBits<kHighBits>(lines, high);
  const std::uint8_t* const nibbles = lines + (kHighBits > 0 ? kLine : 0);
  UnpackLine<0, 4, kHighBits, kOffset>(nibbles, high, out);
  UnpackLine<1, 4, kHighBits, kOffset>(nibbles + kLine, high, out);
  UnpackLine<2, 4, kHighBits, kOffset>(nibbles + 2 * kLine, high, out);
  UnpackLine<3, 4, kHighBits, kOffset>(nibbles + 3 * kLine, high, out);
}

// 16 inputs of six bits, to which kOffset is added.
template <int kOffset, class Out>
HWY_INLINE void UnpackSixBits(const std::uint8_t* lines, Out& out) {
  V8 high[kPanelRegs];
  LoadHighBits<2>(lines, high);
  UnpackLine<0, 2, 2, kOffset>(lines + kLine, high, out);
  UnpackLine<1, 2, 2, kOffset>(lines + 2 * kLine, high, out);
}

// ---- Scales

// 16 factors, one per row.
struct RowFactors {
  VF r[kPanelRegs];
};

// 16 × f16.
HWY_INLINE RowFactors LoadFactors(const std::uint8_t* at) {
  RowFactors factors;
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) {
    factors.r[r] = LoadF16::Load(DF(), reinterpret_cast<const hwy::float16_t*>(at) + r * kLanes);
  }
  return factors;
}

HWY_INLINE void StoreFactors(const RowFactors& factors, float* out) {
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) hn::Store(factors.r[r], DF(), out + r * kLanes);
}

// factor × small integer, for 16 rows. The products are exact.
template <class Small>
HWY_INLINE RowFactors Times(const RowFactors& factors, const Small* small) {
  const DF d;
  RowFactors products;
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) {
    const auto bytes = hn::LoadU(hn::Rebind<Small, DF>(), small + r * kLanes);
    const VF scale = hn::ConvertTo(d, hn::PromoteTo(DI(), bytes));
    products.r[r] = hn::Mul(factors.r[r], scale);
  }
  return products;
}

// Unpacks the 12 bytes of scales of 16 rows to 8 × sc, then 8 × m.
// src/tensor/quantize_super_blocks.cc describes their bits.
HWY_INLINE void UnpackSixBitScales(const std::uint8_t* packed, std::uint8_t* out) {
  const D8 d;
  KVCACHE_UNROLL
  for (int i = 0; i < kLine; i += kVectorBytes) {
    const V8 a = hn::Load(d, packed + i);
    const V8 b = hn::Load(d, packed + kLine + i);
    const V8 c = hn::Load(d, packed + 2 * kLine + i);
    hn::Store(ShiftedBits<0>(a, 63), d, out + i);
    hn::Store(hn::Or(ShiftedBits<0>(c, 15), ShiftedBits<-2>(a, 48)), d, out + kLine + i);
    hn::Store(ShiftedBits<0>(b, 63), d, out + 2 * kLine + i);
    hn::Store(hn::Or(ShiftedBits<-4>(c, 15), ShiftedBits<-2>(b, 48)), d, out + 3 * kLine + i);
  }
}

// ---- Formats

// The head of a chunk of blocks of 32 that have an f16 scale and possibly an f16 minimum.
template <DType kType>
class FloatScales {
 public:
  explicit HWY_INLINE FloatScales(const std::uint8_t* chunk) : chunk_(chunk) {}
  HWY_INLINE RowFactors Scales(std::int64_t b) const {
    return LoadFactors(chunk_ + b * LayoutOf(kType).head_bytes);
  }
  HWY_INLINE RowFactors Minima(std::int64_t b) const {
    return LoadFactors(chunk_ + b * LayoutOf(kType).head_bytes + 2 * kPanelRows);
  }

 private:
  const std::uint8_t* chunk_;
};

// 4 or 5 bits in blocks of 32. A weight is the bits minus kZero.
template <DType kDType, int kHighBits, int kZero>
struct SmallBlocks {
  static constexpr DType kType = kDType;
  static constexpr Chain kChain =
      LayoutOf(kType).head_bytes == 64 ? Chain::kPer32WithMinimum : Chain::kPer32;
  static constexpr ProductKind kProduct = KindOf(kChain, kZero, (16 << kHighBits) - 1);
  using Head = FloatScales<kType>;

  template <int /*kPart*/, class Out>
  static HWY_INLINE void Unpack(const std::uint8_t* lines, Out& out) {
    UnpackBits<kHighBits, kProduct.bias - kZero>(lines, out);
  }
};

// Floats of four bits. A nibble is an index into the doubled values, and the scale is half the
// power of two.
struct FourBitFloats {
  static constexpr DType kType = DType::kMXFP4;
  static constexpr ProductKind kProduct = KindOf(Chain::kPer32, 12, 24);

  class Head {
   public:
    explicit HWY_INLINE Head(const std::uint8_t* chunk) : chunk_(chunk) {}
    // 2^(e - 128) of 16 rows, subnormal for e of 0 and 1.
    HWY_INLINE RowFactors Scales(std::int64_t b) const {
      const DI d;
      const VI one = hn::Set(d, 1);
      const VI smallest = hn::Set(d, 0x00200000);
      RowFactors powers;
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        const hn::Rebind<std::uint8_t, DF> d8;
        const VI e = hn::PromoteTo(d, hn::LoadU(d8, chunk_ + b * kPanelRows + r * kLanes));
        const VI normal = hn::ShiftLeft<23>(hn::Sub(e, one));
        const VI small = hn::IfThenElse(hn::Eq(e, one), hn::Add(smallest, smallest), smallest);
        powers.r[r] = hn::BitCast(DF(), hn::IfThenElse(hn::Gt(e, one), normal, small));
      }
      return powers;
    }

   private:
    const std::uint8_t* chunk_;
  };

  template <int /*kPart*/, class Out>
  static HWY_INLINE void Unpack(const std::uint8_t* lines, Out& out) {
    UnpackValues<0>(lines, out);
    UnpackValues<1>(lines, out);
    UnpackValues<2>(lines, out);
    UnpackValues<3>(lines, out);
  }

 private:
  // Each byte is the value plus the bias.
  template <int kGroup, class Out>
  static HWY_INLINE void UnpackValues(const std::uint8_t* lines, Out& out) {
    constexpr std::uint8_t k0 = kProduct.bias;
    alignas(16) static constexpr std::uint8_t kValues[16] = {
        k0, k0 + 1, k0 + 2, k0 + 3, k0 + 4, k0 + 6, k0 + 8, k0 + 12,
        k0, k0 - 1, k0 - 2, k0 - 3, k0 - 4, k0 - 6, k0 - 8, k0 - 12};
    const D8 d;
    const V8 values = hn::LoadDup128(d, kValues);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const V8 nibbles = hn::Load(d, lines + kGroup * kLine + r * kVectorBytes);
      out.template Put<kGroup, 2 * kGroup>(
          r, hn::TableLookupBytes(values, ShiftedBits<0>(nibbles, 15)));
      out.template Put<kGroup + 4, 2 * kGroup + 1>(
          r, hn::TableLookupBytes(values, ShiftedBits<-4>(nibbles, 15)));
    }
  }
};

// Q8_0: the panel holds bytes already.
struct WholeBytes {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr ProductKind kProduct = KindOf(Chain::kPer32, 128, kAnyByte);
  using Head = FloatScales<kType>;

  template <int /*kPart*/, class Out>
  static HWY_INLINE void Unpack(const std::uint8_t* lines, Out& out) {
    PutLines<0>(lines, out);
  }

 private:
  template <int kGroup, class Out>
  static HWY_INLINE void PutLines(const std::uint8_t* lines, Out& out) {
    if constexpr (kGroup < kBlock / 4) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        out.template Put<kGroup, kGroup>(r,
                                         hn::Load(D8(), lines + kGroup * kLine + r * kVectorBytes));
      }
      PutLines<kGroup + 1>(lines, out);
    }
  }
};

// 4 or 5 bits in super-blocks with scales and minima per 32.
template <DType kDType, int kHighBits>
struct SuperBlocks {
  static constexpr DType kType = kDType;
  static constexpr ProductKind kProduct =
      KindOf(Chain::kPer256WithMinimum, 0, (16 << kHighBits) - 1);

  class Head {
   public:
    explicit HWY_INLINE Head(const std::uint8_t* chunk)
        : d_(LoadFactors(chunk)), minus_minimum_(LoadFactors(chunk + 2 * kPanelRows)) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) minus_minimum_.r[r] = hn::Neg(minus_minimum_.r[r]);
      UnpackSixBitScales(chunk + kLine, small_);
    }
    HWY_INLINE RowFactors Scales(std::int64_t b) const {
      return Times(d_, small_ + b * kPanelRows);
    }
    HWY_INLINE RowFactors Minima(std::int64_t b) const {
      return Times(minus_minimum_, small_ + 2 * kLine + b * kPanelRows);
    }

   private:
    RowFactors d_;
    RowFactors minus_minimum_;
    alignas(64) std::uint8_t small_[4 * kLine];
  };

  template <int /*kPart*/, class Out>
  static HWY_INLINE void Unpack(const std::uint8_t* lines, Out& out) {
    UnpackBits<kHighBits, 0>(lines, out);
  }
};

// 6 bits in super-blocks with signed scales per 16.
struct SixBitSuperBlocks {
  static constexpr int kZero = 32;
  static constexpr DType kType = DType::kQ6_K;
  static constexpr ProductKind kProduct = KindOf(Chain::kPer256Of16, kZero, 63);

  class Head {
   public:
    explicit HWY_INLINE Head(const std::uint8_t* chunk)
        : chunk_(chunk), d_(LoadFactors(chunk + kChunk / 16 * kPanelRows)) {}
    HWY_INLINE RowFactors Scales(std::int64_t s) const {
      return Times(d_, reinterpret_cast<const std::int8_t*>(chunk_) + s * kPanelRows);
    }

   private:
    const std::uint8_t* chunk_;
    RowFactors d_;
  };

  template <int kPart, class Out>
  static HWY_INLINE void Unpack(const std::uint8_t* lines, Out& out) {
    UnpackSixBits<kProduct.bias - kZero>(lines + kPart * 3 * kLine, out);
  }
};

template <DType kType>
struct Format;
template <>
struct Format<DType::kQ4_0> : SmallBlocks<DType::kQ4_0, 0, 8> {};
template <>
struct Format<DType::kQ4_1> : SmallBlocks<DType::kQ4_1, 0, 0> {};
template <>
struct Format<DType::kQ5_0> : SmallBlocks<DType::kQ5_0, 1, 16> {};
template <>
struct Format<DType::kQ5_1> : SmallBlocks<DType::kQ5_1, 1, 0> {};
template <>
struct Format<DType::kMXFP4> : FourBitFloats {};
template <>
struct Format<DType::kQ8_0> : WholeBytes {};
template <>
struct Format<DType::kQ4_K> : SuperBlocks<DType::kQ4_K, 0> {};
template <>
struct Format<DType::kQ5_K> : SuperBlocks<DType::kQ5_K, 1> {};
template <>
struct Format<DType::kQ6_K> : SixBitSuperBlocks {};

// The distance at which weights are prefetched: the hardware's prefetchers stop at the ends of
// pages and panels.
inline constexpr std::int64_t kPrefetchBytes = 8192;

template <std::int64_t kBytes>
HWY_INLINE void PrefetchAhead(const std::uint8_t* from) {
  KVCACHE_UNROLL
  for (std::int64_t i = 0; i < kBytes; i += kLine) hwy::Prefetch(from + kPrefetchBytes + i);
}

// Who prefetches the weights ahead of a chunk.
enum class Prefetching : std::uint8_t { kUnpacking, kTiles };

// Unpacks the kPart-th inputs that share a scale, of the 32 inputs `b` of a chunk.
template <class Format, int kPart>
HWY_INLINE void UnpackPart(const std::uint8_t* lines, const typename Format::Head& head,
                           std::int64_t b, ChunkWorkspace& workspace) {
  constexpr Chain kChain = Format::kProduct.chain;
  const std::int64_t i = b * PartsOf(kChain) + kPart;
  if constexpr (Format::kType != DType::kQ8_0) {
    ToMemory to{workspace.quants + i * GroupsOf(kChain) * kLine};
    Format::template Unpack<kPart>(lines, to);
  }
  StoreFactors(head.Scales(i), workspace.scales + i * kPanelRows);
  if constexpr (HasMinima(kChain)) {
    StoreFactors(head.Minima(i), workspace.minima + i * kPanelRows);
  }
}

// Unpacks a chunk to `workspace`. The bytes of Q8_0 stay where they are.
template <class Format>
HWY_INLINE Unpacked UnpackChunk(const std::uint8_t* chunk, std::int64_t blocks,
                                Prefetching prefetching, ChunkWorkspace& workspace) {
  constexpr std::int64_t kBodyBytes = LayoutOf(Format::kType).body_bytes;
  const bool prefetches = prefetching == Prefetching::kUnpacking;
  if (prefetches) PrefetchAhead<HeadBytes(Format::kType, kChunkBlocks)>(chunk);
  const typename Format::Head head(chunk);
  const std::uint8_t* const lines = chunk + HeadBytes(Format::kType, blocks);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::uint8_t* const from = lines + b * kBodyBytes;
    if (prefetches) PrefetchAhead<kBodyBytes>(from);
    UnpackPart<Format, 0>(from, head, b, workspace);
    if constexpr (PartsOf(Format::kProduct.chain) == 2) {
      UnpackPart<Format, 1>(from, head, b, workspace);
    }
  }
  const std::uint8_t* quants = Format::kType == DType::kQ8_0 ? lines : workspace.quants;
#if HWY_ARCH_ARM_A64
  if constexpr (Format::kProduct.bytes.matrix) {
    InterleaveLines(quants, blocks * kBlock / 4, workspace.quants);
    quants = workspace.quants;
  }
#endif
  return {quants, workspace.scales, workspace.minima};
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_
