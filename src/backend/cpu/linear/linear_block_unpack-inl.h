// Unpacks a chunk of a panel to bytes and f32 scales. All differences between the formats are here.
//
// Compiled once per target. Format<DType>, one per type, has
//   kProduct     the chain of docs/design/exactness.md that computes its outputs, and its bytes
//   UnpackHead   unpacks the scales of a chunk if they are one piece
//   UnpackBlock  unpacks 32 inputs, and their scales otherwise
//   QuantsOf     returns the bytes that a product reads
//
// Unpacking costs about as much as multiplying three tokens. It is done once for all tokens of a
// group, and its result stays in the first-level cache.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_
#endif

#include "backend/cpu/linear/linear_block_dot-inl.h"
#include "backend/cpu/linear/linear_block_layout.h"
#include "backend/cpu/simd/simd-inl.h"
#include "hwy/cache_control.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using cpu::HWY_NAMESPACE::DF;
using cpu::HWY_NAMESPACE::kLanes;
using cpu::HWY_NAMESPACE::LoadF16;
using cpu::HWY_NAMESPACE::VF;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
using D8 = hn::Repartition<std::uint8_t, DF>;
using V8 = hn::Vec<D8>;

inline constexpr int kPanelRegs = static_cast<int>(kPanelRows) / kLanes;
inline constexpr int kVectorBytes = 4 * kLanes;

enum class Chain : std::uint8_t {
  kPer32,              // y = fma(float(dot), d_w · d_x, y) for each 32 inputs
  kPer32WithMinimum,   // and y = fma(m_w, d_x · Σ q_x, y)
  kPer256WithMinimum,  // a = fma(float(dot), s, a), a = fma(-minimum, Σ q_x, a) for each 32 inputs
                       // from a = +0, then y = fma(a, d_x, y) for each 256
  kPer256Of16,         // the same with scales per 16 inputs and no minima
};

// What a product has to know of a format. A weight is its byte minus `bias`.
struct ProductKind {
  Chain chain;
  int bias;
  int max_byte;
};

// With int8 dot products all formats have the same bytes, and so the same products. Other targets
// add more products of small bytes in 16 bits.
inline constexpr bool kSameBytes = HWY_TARGET == HWY_AVX3_DL;
constexpr ProductKind KindOf(Chain chain, int bias, int max_byte) {
  if (!kSameBytes || chain == Chain::kPer256WithMinimum) return {chain, bias, max_byte};
  return {chain, 128, kAnyByte};
}

// An unpacked chunk of a panel.
struct Unpacked {
  const std::uint8_t* quants;  // [group of four inputs][16 rows][4]
  const float* scales;         // [32 inputs, or 16][16 rows]
  const float* minima;         // [32 inputs][16 rows], for the chains that have them
};

struct ChunkWorkspace {
  alignas(64) std::uint8_t quants[kChunk * kPanelRows];
  alignas(64) float scales[kChunk / 16 * kPanelRows];
  alignas(64) float minima[kChunkBlocks * kPanelRows];
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

// Unpacks a line of nibbles: the lower ones to group kGroup of `out`, the upper ones to group
// kGroup + kApart. Puts kHighBits bits from `high` above each nibble and adds kOffset.
template <int kGroup, int kApart, int kHighBits, int kOffset>
HWY_INLINE void UnpackLine(V8 nibbles, V8 high, std::uint8_t* out) {
  const D8 d;
  V8 low_group = ShiftedBits<0>(nibbles, 15);
  V8 high_group = ShiftedBits<-4>(nibbles, 15);
  if constexpr (kHighBits > 0) {
    constexpr auto kMask = static_cast<std::uint8_t>(((1 << kHighBits) - 1) << 4);
    low_group = hn::Or(low_group, ShiftedBits<4 - kGroup * kHighBits>(high, kMask));
    high_group = hn::Or(high_group, ShiftedBits<4 - (kGroup + kApart) * kHighBits>(high, kMask));
  }
  if constexpr (kOffset > 0) {
    low_group = hn::Add(low_group, hn::Set(d, static_cast<std::uint8_t>(kOffset)));
    high_group = hn::Add(high_group, hn::Set(d, static_cast<std::uint8_t>(kOffset)));
  }
  hn::Store(low_group, d, out + kGroup * kLine);
  hn::Store(high_group, d, out + (kGroup + kApart) * kLine);
}

// 32 inputs of four bits, or five.
template <int kHighBits, int kOffset>
HWY_INLINE void UnpackBits(const std::uint8_t* lines, std::uint8_t* out) {
  const D8 d;
  KVCACHE_UNROLL
  for (int i = 0; i < kLine; i += kVectorBytes) {
    const V8 high = kHighBits > 0 ? hn::Load(d, lines + i) : hn::Zero(d);
    const std::uint8_t* const nibbles = lines + (kHighBits > 0 ? kLine : 0) + i;
    UnpackLine<0, 4, kHighBits, kOffset>(hn::Load(d, nibbles), high, out + i);
    UnpackLine<1, 4, kHighBits, kOffset>(hn::Load(d, nibbles + kLine), high, out + i);
    UnpackLine<2, 4, kHighBits, kOffset>(hn::Load(d, nibbles + 2 * kLine), high, out + i);
    UnpackLine<3, 4, kHighBits, kOffset>(hn::Load(d, nibbles + 3 * kLine), high, out + i);
  }
}

// 16 inputs of six bits, to which kOffset is added.
template <int kOffset>
HWY_INLINE void UnpackSixBits(const std::uint8_t* lines, std::uint8_t* out) {
  const D8 d;
  KVCACHE_UNROLL
  for (int i = 0; i < kLine; i += kVectorBytes) {
    const V8 high = hn::Load(d, lines + i);
    UnpackLine<0, 2, 2, kOffset>(hn::Load(d, lines + kLine + i), high, out + i);
    UnpackLine<1, 2, 2, kOffset>(hn::Load(d, lines + 2 * kLine + i), high, out + i);
  }
}

// ---- Scales

// 16 × f16.
struct RowFactors {
  VF r[kPanelRegs];
};
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

// out = factor × small integer, for 16 rows. The product is exact.
template <class Small>
HWY_INLINE void StoreScales(const RowFactors& factors, const Small* small, float* out) {
  const DF d;
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) {
    const auto bytes = hn::LoadU(hn::Rebind<Small, DF>(), small + r * kLanes);
    const VF scale = hn::ConvertTo(d, hn::PromoteTo(DI(), bytes));
    hn::Store(hn::Mul(factors.r[r], scale), d, out + r * kLanes);
  }
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

// The distance at which weights are prefetched: the hardware's prefetchers stop at the ends of
// pages and panels.
inline constexpr std::int64_t kPrefetchBytes = 2048;

template <std::int64_t kBytes>
HWY_INLINE void PrefetchAhead(const std::uint8_t* from) {
  KVCACHE_UNROLL
  for (std::int64_t i = 0; i < kBytes; i += kLine) hwy::Prefetch(from + kPrefetchBytes + i);
}

// 4 or 5 bits in blocks of 32. A weight is the bits minus kZero.
template <DType kType, int kHighBits, int kZero>
struct SmallBlocks {
  static constexpr bool kHasMinimum = LayoutOf(kType).head_bytes == 64;
  static constexpr ProductKind kProduct =
      KindOf(kHasMinimum ? Chain::kPer32WithMinimum : Chain::kPer32, kZero, (16 << kHighBits) - 1);

  static const std::uint8_t* QuantsOf(const std::uint8_t*, std::int64_t,
                                      const ChunkWorkspace& workspace) {
    return workspace.quants;
  }
  static HWY_INLINE void UnpackHead(const std::uint8_t*, ChunkWorkspace&) {}
  static HWY_INLINE void UnpackBlock(const std::uint8_t* chunk, std::int64_t blocks, std::int64_t b,
                                     ChunkWorkspace& workspace) {
    const std::uint8_t* const head = chunk + b * LayoutOf(kType).head_bytes;
    const std::uint8_t* const lines =
        chunk + HeadBytes(kType, blocks) + b * LayoutOf(kType).body_bytes;
    PrefetchAhead<LayoutOf(kType).body_bytes>(lines);
    UnpackBits<kHighBits, kProduct.bias - kZero>(lines, workspace.quants + b * kBlock * kPanelRows);
    StoreFactors(LoadFactors(head), workspace.scales + b * kPanelRows);
    if constexpr (kHasMinimum) {
      StoreFactors(LoadFactors(head + 2 * kPanelRows), workspace.minima + b * kPanelRows);
    }
  }
};

// Floats of four bits. A nibble is an index into the doubled values, and the scale is half the
// power of two.
struct FourBitFloats {
  static constexpr ProductKind kProduct = KindOf(Chain::kPer32, 12, 24);
  static constexpr DType kType = DType::kMXFP4;

  static const std::uint8_t* QuantsOf(const std::uint8_t*, std::int64_t,
                                      const ChunkWorkspace& workspace) {
    return workspace.quants;
  }
  static HWY_INLINE void UnpackHead(const std::uint8_t*, ChunkWorkspace&) {}
  static HWY_INLINE void UnpackBlock(const std::uint8_t* chunk, std::int64_t blocks, std::int64_t b,
                                     ChunkWorkspace& workspace) {
    const std::uint8_t* const lines =
        chunk + HeadBytes(kType, blocks) + b * LayoutOf(kType).body_bytes;
    PrefetchAhead<LayoutOf(kType).body_bytes>(lines);
    UnpackValues(lines, workspace.quants + b * kBlock * kPanelRows);
    StorePowers(chunk + b * kPanelRows, workspace.scales + b * kPanelRows);
  }

 private:
  // Each byte is the value plus the bias.
  static HWY_INLINE void UnpackValues(const std::uint8_t* lines, std::uint8_t* out) {
    constexpr std::uint8_t k0 = kProduct.bias;
    alignas(16) static constexpr std::uint8_t kValues[16] = {
        k0, k0 + 1, k0 + 2, k0 + 3, k0 + 4, k0 + 6, k0 + 8, k0 + 12,
        k0, k0 - 1, k0 - 2, k0 - 3, k0 - 4, k0 - 6, k0 - 8, k0 - 12};
    const D8 d;
    const V8 values = hn::LoadDup128(d, kValues);
    KVCACHE_UNROLL
    for (int g = 0; g < 4; ++g) {
      KVCACHE_UNROLL
      for (int i = 0; i < kLine; i += kVectorBytes) {
        const V8 nibbles = hn::Load(d, lines + g * kLine + i);
        hn::Store(hn::TableLookupBytes(values, ShiftedBits<0>(nibbles, 15)), d,
                  out + g * kLine + i);
        hn::Store(hn::TableLookupBytes(values, ShiftedBits<-4>(nibbles, 15)), d,
                  out + (g + 4) * kLine + i);
      }
    }
  }

  // 2^(e - 128) of 16 rows, subnormal for e of 0 and 1.
  static HWY_INLINE void StorePowers(const std::uint8_t* exponents, float* out) {
    const DI d;
    const VI one = hn::Set(d, 1);
    const VI smallest = hn::Set(d, 0x00200000);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const hn::Rebind<std::uint8_t, DF> d8;
      const VI e = hn::PromoteTo(d, hn::LoadU(d8, exponents + r * kLanes));
      const VI normal = hn::ShiftLeft<23>(hn::Sub(e, one));
      const VI small = hn::IfThenElse(hn::Eq(e, one), hn::Add(smallest, smallest), smallest);
      const VI bits = hn::IfThenElse(hn::Gt(e, one), normal, small);
      hn::Store(hn::BitCast(DF(), bits), DF(), out + r * kLanes);
    }
  }
};

// Q8_0: the panel holds bytes already, only the scales are unpacked.
struct WholeBytes {
  static constexpr ProductKind kProduct = KindOf(Chain::kPer32, 128, kAnyByte);
  static constexpr DType kType = DType::kQ8_0;

  static const std::uint8_t* QuantsOf(const std::uint8_t* chunk, std::int64_t blocks,
                                      const ChunkWorkspace&) {
    return chunk + HeadBytes(kType, blocks);
  }
  static HWY_INLINE void UnpackHead(const std::uint8_t*, ChunkWorkspace&) {}
  static HWY_INLINE void UnpackBlock(const std::uint8_t* chunk, std::int64_t blocks, std::int64_t b,
                                     ChunkWorkspace& workspace) {
    PrefetchAhead<LayoutOf(kType).body_bytes>(chunk + HeadBytes(kType, blocks) +
                                              b * LayoutOf(kType).body_bytes);
    StoreFactors(LoadFactors(chunk + b * 2 * kPanelRows), workspace.scales + b * kPanelRows);
  }
};

// 4 or 5 bits in super-blocks with scales and minima per 32.
template <DType kType, int kHighBits>
struct SuperBlocks {
  static constexpr ProductKind kProduct =
      KindOf(Chain::kPer256WithMinimum, 0, (16 << kHighBits) - 1);

  static const std::uint8_t* QuantsOf(const std::uint8_t*, std::int64_t,
                                      const ChunkWorkspace& workspace) {
    return workspace.quants;
  }
  static HWY_INLINE void UnpackHead(const std::uint8_t* chunk, ChunkWorkspace& workspace) {
    alignas(64) std::uint8_t small[4 * kLine];
    PrefetchAhead<HeadBytes(kType, kChunkBlocks)>(chunk);
    UnpackSixBitScales(chunk + kLine, small);
    const RowFactors d = LoadFactors(chunk);
    RowFactors minus_minimum = LoadFactors(chunk + 2 * kPanelRows);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) minus_minimum.r[r] = hn::Neg(minus_minimum.r[r]);
    for (std::int64_t b = 0; b < kChunkBlocks; ++b) {
      StoreScales(d, small + b * kPanelRows, workspace.scales + b * kPanelRows);
      StoreScales(minus_minimum, small + 2 * kLine + b * kPanelRows,
                  workspace.minima + b * kPanelRows);
    }
  }
  static HWY_INLINE void UnpackBlock(const std::uint8_t* chunk, std::int64_t, std::int64_t b,
                                     ChunkWorkspace& workspace) {
    const std::uint8_t* const lines =
        chunk + HeadBytes(kType, kChunkBlocks) + b * LayoutOf(kType).body_bytes;
    PrefetchAhead<LayoutOf(kType).body_bytes>(lines);
    UnpackBits<kHighBits, 0>(lines, workspace.quants + b * kBlock * kPanelRows);
  }
};

// 6 bits in super-blocks with signed scales per 16.
struct SixBitSuperBlocks {
  static constexpr int kZero = 32;
  static constexpr ProductKind kProduct = KindOf(Chain::kPer256Of16, kZero, 63);
  static constexpr DType kType = DType::kQ6_K;
  static constexpr std::int64_t kSub = 16;

  static const std::uint8_t* QuantsOf(const std::uint8_t*, std::int64_t,
                                      const ChunkWorkspace& workspace) {
    return workspace.quants;
  }
  static HWY_INLINE void UnpackHead(const std::uint8_t* chunk, ChunkWorkspace& workspace) {
    PrefetchAhead<HeadBytes(kType, kChunkBlocks)>(chunk);
    const RowFactors d = LoadFactors(chunk + kChunk / kSub * kPanelRows);
    for (std::int64_t s = 0; s < kChunk / kSub; ++s) {
      StoreScales(d, reinterpret_cast<const std::int8_t*>(chunk) + s * kPanelRows,
                  workspace.scales + s * kPanelRows);
    }
  }
  static HWY_INLINE void UnpackBlock(const std::uint8_t* chunk, std::int64_t, std::int64_t b,
                                     ChunkWorkspace& workspace) {
    constexpr std::int64_t kBody = LayoutOf(kType).body_bytes;
    const std::uint8_t* const lines = chunk + HeadBytes(kType, kChunkBlocks) + b * kBody;
    std::uint8_t* const out = workspace.quants + b * kBlock * kPanelRows;
    PrefetchAhead<kBody>(lines);
    UnpackSixBits<kProduct.bias - kZero>(lines, out);
    UnpackSixBits<kProduct.bias - kZero>(lines + kBody / 2, out + kSub * kPanelRows);
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

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // KVCACHE_BACKEND_CPU_LINEAR_BLOCK_UNPACK_INL_H_
