// How a lane of a warp reads a panel of block-quantised weights (cpu/common/block_layout.h), for all types.
//
// A warp multiplies the 16 rows of a panel. A lane has g = lane / 4 and t = lane % 4; its rows are 2 g and
// 2 g + 1, which are neighbours in a line, so that 8 bytes of a line are the fragments of both (rows g and
// g + 8 of the matrix instruction). Its inputs are group t of each half of 32 inputs.
//
//   Body    the lines of 32 inputs: Load takes the lane's words, Fragments makes signed bytes of them
//   Head    the scales: LoadOuter (a chunk's), LoadInner (those of 32 inputs), Scales
//
// A weight is a signed byte times a scale, minus a minimum in types that have them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/words.h"

namespace kvcache::cuda::linear {

// A lane's place in the fragments of the matrix instructions.
struct Spot {
  int g;
  int t;
  KVCACHE_DEVICE int row() const { return 2 * g; }  // the first of the two
};
KVCACHE_DEVICE Spot SpotOfLane() {
  return {Lane() / 4, Lane() % 4};
}

// The place of a lane that has one row, and reads it by OneRowOfShared. What belongs to a second row is zero.
struct RowSpot {
  int own_row;
  int t;
  KVCACHE_DEVICE int row() const { return own_row; }
};

// Where a panel is read.
struct FromShared {
  template <class T>
  static KVCACHE_DEVICE T Load(const std::byte* at) {
    return *reinterpret_cast<const T*>(at);
  }
};

// Reads what one row has of the numbers that the functions below load for two.
struct OneRowOfShared {
  template <class T>
  static KVCACHE_DEVICE T Load(const std::byte* at) {
    if constexpr (sizeof(T) == 8) {
      return T{{*reinterpret_cast<const std::uint32_t*>(at), 0}};
    } else if constexpr (sizeof(T) == 4) {
      return *reinterpret_cast<const std::uint16_t*>(at);
    } else {
      return *reinterpret_cast<const std::uint8_t*>(at);
    }
  }
};

// The words of the lane's two rows in a line.
template <class From, class Place>
KVCACHE_DEVICE Words2 LoadRows(const std::byte* lines, int line, const Place& spot) {
  return From::template Load<Words2>(lines + line * block::kLine + spot.row() * 4);
}
template <class From>
KVCACHE_DEVICE std::uint32_t LoadWord(const std::byte* at) {
  return From::template Load<std::uint32_t>(at);
}
template <class From>
KVCACHE_DEVICE std::uint32_t LoadShort(const std::byte* at) {
  return From::template Load<std::uint16_t>(at);
}

// ---- Bodies

enum class Body : std::uint8_t {
  kBytes,      // Q8_0
  kNibbles,    // groups G and G + 4
  kNibbles16,  // groups G and G + 2 of each half
  kFiveBits,   // a line of fifth bits, then nibbles
  kSixBits,    // each half: a line of pairs, then nibbles of groups G and G + 2
  kPairs,      // each half: a line of pairs
  kThreeBits,  // nibbles of three groups of each half, and in their bits 3 the fourth group
};

constexpr Body BodyOf(DType type) {
  switch (type) {
    case DType::kQ8_0: return Body::kBytes;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K: return Body::kFiveBits;
    case DType::kQ6_K: return Body::kSixBits;
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K:
    case DType::kMXFP4: return Body::kNibbles;
    default: break;
  }
  const codec::CodeType code = codec::CodeTypeOf(type);
  if (code.bits == 4) return code.sub == 16 ? Body::kNibbles16 : Body::kNibbles;
  return code.bits == 3 ? Body::kThreeBits : Body::kPairs;
}

constexpr int LinesOf(Body body) {
  switch (body) {
    case Body::kNibbles: return 1;
    case Body::kSixBits: return 4;
    case Body::kThreeBits: return 3;
    default: return 2;
  }
}

// What the code of a type stands for: itself minus `zero`, or an entry of a table.
struct Meaning {
  int zero = 0;
  bool has_table = false;
  codec::CodeTable table{};
};

constexpr Meaning MeaningOf(DType type) {
  constexpr codec::CodeTable kFloats = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  if (ZeroOf(type) > 0) return {ZeroOf(type)};
  if (type == DType::kMXFP4) return {0, true, kFloats};
  const codec::CodeType code = codec::CodeTypeOf(type);
  const bool is_code = code.bits == 0 || type == DType::kQ2_K;
  return is_code ? Meaning{} : Meaning{0, true, code.table};
}

// Four entries of a table, as the bytes of a word.
template <DType kType, int kFirst>
constexpr std::uint32_t TableWord() {
  std::uint32_t word = 0;
  for (int i = 3; i >= 0; --i) {
    const std::int8_t value = MeaningOf(kType).table[static_cast<std::size_t>(kFirst + i)];
    word = word << 8 | static_cast<std::uint8_t>(value);
  }
  return word;
}

// Looks up four codes of three bits, which are the nibbles of `selector`'s lower half.
template <DType kType, int kFirst>
KVCACHE_DEVICE std::uint32_t LookUpEight(std::uint32_t selector) {
  constexpr std::uint32_t kLow = TableWord<kType, kFirst>();
  constexpr std::uint32_t kHigh = TableWord<kType, kFirst + 4>();
  return BytePermute(kLow, kHigh, selector);
}

// The same for codes of four bits: `low` has their lower three bits, `fourth` is 0x3210 plus the fourth
// bits times four.
template <DType kType>
KVCACHE_DEVICE std::uint32_t LookUpSixteen(std::uint32_t low, std::uint32_t fourth) {
  return BytePermute(LookUpEight<kType, 0>(low), LookUpEight<kType, 8>(low), fourth);
}

// The codes of a word, a byte each, as the nibbles of a selector.
KVCACHE_DEVICE std::uint32_t SelectorOf(std::uint32_t codes) {
  return BytePermute(codes | codes >> 4, 0, 0x4420);
}

// Makes signed bytes of codes, a byte each.
template <DType kType>
KVCACHE_DEVICE std::uint32_t ValuesOf(std::uint32_t codes) {
  constexpr Meaning kMeaning = MeaningOf(kType);
  if constexpr (kMeaning.zero > 0) {
    // With the upper bits set no byte borrows from the next one.
    constexpr std::uint32_t kZeros = 0x01010101u * kMeaning.zero;
    return ((codes | 0x80808080u) - kZeros) ^ 0x80808080u;
  }
  if constexpr (kMeaning.has_table) {
    const std::uint32_t selector = SelectorOf(codes);
    if constexpr (codec::CodeTypeOf(kType).bits == 3) return LookUpEight<kType, 0>(selector);
    return LookUpSixteen<kType>(selector & 0x7777u, (selector & 0x8888u) >> 1 | 0x3210u);
  }
  return codes;
}

// Eight nibbles of a word through a table: the lower ones of its bytes, and the upper ones.
template <DType kType>
KVCACHE_DEVICE void LookUpNibbles(std::uint32_t word, std::uint32_t& lower, std::uint32_t& upper) {
  const std::uint32_t low = word & 0x77777777u;
  const std::uint32_t fourth = (word >> 1 & 0x44444444u) | 0x32103210u;
  const std::uint32_t first = LookUpSixteen<kType>(low, fourth);
  const std::uint32_t last = LookUpSixteen<kType>(low >> 16, fourth >> 16);
  lower = BytePermute(first, last, 0x6420);
  upper = BytePermute(first, last, 0x7531);
}

template <DType kType>
struct Lines {
  Words2 at[LinesOf(BodyOf(kType))];
};

// Loads what the lane needs of the 32 inputs at `lines`.
template <DType kType, class From, class Place>
KVCACHE_DEVICE Lines<kType> LoadLines(const std::byte* lines, const Place& spot) {
  constexpr Body kBody = BodyOf(kType);
  Lines<kType> read;
  if constexpr (kBody == Body::kBytes) {
    read.at[0] = LoadRows<From>(lines, spot.t, spot);
    read.at[1] = LoadRows<From>(lines, 4 + spot.t, spot);
  } else if constexpr (kBody == Body::kNibbles) {
    read.at[0] = LoadRows<From>(lines, spot.t, spot);
  } else if constexpr (kBody == Body::kFiveBits) {
    read.at[0] = LoadRows<From>(lines, 0, spot);
    read.at[1] = LoadRows<From>(lines, 1 + spot.t, spot);
  } else if constexpr (kBody == Body::kNibbles16) {
    read.at[0] = LoadRows<From>(lines, spot.t % 2, spot);
    read.at[1] = LoadRows<From>(lines, 2 + spot.t % 2, spot);
  } else if constexpr (kBody == Body::kSixBits) {
    read.at[0] = LoadRows<From>(lines, 0, spot);
    read.at[1] = LoadRows<From>(lines, 1 + spot.t % 2, spot);
    read.at[2] = LoadRows<From>(lines, 3, spot);
    read.at[3] = LoadRows<From>(lines, 4 + spot.t % 2, spot);
  } else {
    KVCACHE_UNROLL
    for (int i = 0; i < LinesOf(kBody); ++i) read.at[i] = LoadRows<From>(lines, i, spot);
  }
  return read;
}

// The lane's codes in half kHalf of 32 inputs, for row 2 g + kRow.
template <DType kType, int kHalf, int kRow, class Place>
KVCACHE_DEVICE std::uint32_t CodesOf(const Lines<kType>& lines, const Place& spot) {
  constexpr Body kBody = BodyOf(kType);
  constexpr std::uint32_t kNibbles = 0x0f0f0f0fu;
  constexpr std::uint32_t kTwoBits = 0x03030303u;
  constexpr std::uint32_t kOneBit = 0x01010101u;
  if constexpr (kBody == Body::kNibbles) {
    return lines.at[0].row[kRow] >> 4 * kHalf & kNibbles;
  } else if constexpr (kBody == Body::kFiveBits) {
    const std::uint32_t fifth = lines.at[0].row[kRow] >> (spot.t + 4 * kHalf) & kOneBit;
    return (lines.at[1].row[kRow] >> 4 * kHalf & kNibbles) | fifth << 4;
  } else if constexpr (kBody == Body::kNibbles16) {
    return lines.at[kHalf].row[kRow] >> spot.t / 2 * 4 & kNibbles;
  } else if constexpr (kBody == Body::kSixBits) {
    const std::uint32_t high = lines.at[2 * kHalf].row[kRow] >> 2 * spot.t & kTwoBits;
    return (lines.at[2 * kHalf + 1].row[kRow] >> spot.t / 2 * 4 & kNibbles) | high << 4;
  } else if constexpr (kBody == Body::kPairs) {
    return lines.at[kHalf].row[kRow] >> 2 * spot.t & kTwoBits;
  } else {
    const std::uint32_t first = lines.at[0].row[kRow] >> 4 * kHalf;
    const std::uint32_t second = lines.at[1].row[kRow] >> 4 * kHalf;
    const std::uint32_t third = lines.at[2].row[kRow] >> 4 * kHalf;
    const std::uint32_t fourth =
        (first >> 3 & kOneBit) | (second >> 2 & kOneBit << 1) | (third >> 1 & kOneBit << 2);
    const std::uint32_t own = spot.t == 0 ? first : spot.t == 1 ? second : third;
    return spot.t == 3 ? fourth : own & 0x07070707u;
  }
}

// The fragment `a` of 32 inputs: rows 2 g and 2 g + 1 of the first half, then of the second.
template <DType kType, class Place>
KVCACHE_DEVICE void MakeFragment(const Lines<kType>& lines, const Place& spot,
                                 std::uint32_t (&a)[4]) {
  constexpr Body kBody = BodyOf(kType);
  if constexpr (kBody == Body::kBytes) {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) a[i] = lines.at[i / 2].row[i % 2] ^ 0x80808080u;
  } else if constexpr (kBody == Body::kNibbles && MeaningOf(kType).has_table) {
    LookUpNibbles<kType>(lines.at[0].row[0], a[0], a[2]);
    LookUpNibbles<kType>(lines.at[0].row[1], a[1], a[3]);
  } else {
    a[0] = ValuesOf<kType>(CodesOf<kType, 0, 0>(lines, spot));
    a[1] = ValuesOf<kType>(CodesOf<kType, 0, 1>(lines, spot));
    a[2] = ValuesOf<kType>(CodesOf<kType, 1, 0>(lines, spot));
    a[3] = ValuesOf<kType>(CodesOf<kType, 1, 1>(lines, spot));
  }
}

// ---- Heads

enum class HeadKind : std::uint8_t {
  kHalves,     // d per 32 inputs
  kHalves2,    // d and m per 32 inputs
  kPowers,     // MXFP4
  kEightBits,  // NVFP4
  kSixBits,    // d, dmin, 12 bytes of scales
  kSigned8,    // d, 8 signed bytes
  kSigned16,   // d, 16 signed bytes
  kNibbles,    // Q2_K
  kOnlyD,      // TQ
};

constexpr HeadKind HeadKindOf(DType type) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1: return HeadKind::kHalves2;
    case DType::kMXFP4: return HeadKind::kPowers;
    case DType::kNVFP4: return HeadKind::kEightBits;
    case DType::kQ4_K:
    case DType::kQ5_K: return HeadKind::kSixBits;
    case DType::kQ2_K: return HeadKind::kNibbles;
    case DType::kTQ1_0:
    case DType::kTQ2_0: return HeadKind::kOnlyD;
    default: break;
  }
  if (!IsPer256(ChainOf(type))) return HeadKind::kHalves;
  return PartsOf(ChainOf(type)) == 2 ? HeadKind::kSigned16 : HeadKind::kSigned8;
}

// Rows 2 g and 2 g + 1 of what all 256 inputs share: two f16 of d, and of dmin.
struct OuterHead {
  std::uint32_t d = 0;
  std::uint32_t dmin = 0;
};

template <DType kType, class From, class Place>
KVCACHE_DEVICE OuterHead LoadOuter(const std::byte* chunk, const Place& spot) {
  constexpr HeadKind kKind = HeadKindOf(kType);
  OuterHead head;
  if constexpr (IsPer256(ChainOf(kType))) {
    constexpr int kAt = kType == DType::kQ6_K ? 256 : 0;
    head.d = LoadWord<From>(chunk + kAt + 2 * spot.row());
    if constexpr (kKind == HeadKind::kSixBits || kKind == HeadKind::kNibbles) {
      head.dmin = LoadWord<From>(chunk + 32 + 2 * spot.row());
    }
  }
  return head;
}

constexpr int InnerWordsOf(HeadKind kind) {
  switch (kind) {
    case HeadKind::kOnlyD: return 0;
    case HeadKind::kHalves:
    case HeadKind::kPowers:
    case HeadKind::kSigned8: return 1;
    case HeadKind::kSixBits: return 3;
    default: return 2;
  }
}

// Rows 2 g and 2 g + 1 of what 32 inputs have for themselves.
template <DType kType>
struct InnerHead {
  static constexpr int kWords = InnerWordsOf(HeadKindOf(kType));
  std::uint32_t at[kWords == 0 ? 1 : kWords];
};

// `b`: which 32 inputs of the chunk.
template <DType kType, class From, class Place>
KVCACHE_DEVICE InnerHead<kType> LoadInner(const std::byte* chunk, int b, const Place& spot) {
  constexpr HeadKind kKind = HeadKindOf(kType);
  constexpr int kRow =
      static_cast<int>(block::kPanelRows);  // bytes of one small number of all rows
  const int pair = spot.row();
  InnerHead<kType> head{};
  if constexpr (kKind == HeadKind::kHalves) {
    head.at[0] = LoadWord<From>(chunk + b * 32 + 2 * pair);
  } else if constexpr (kKind == HeadKind::kHalves2) {
    head.at[0] = LoadWord<From>(chunk + b * 64 + 2 * pair);
    head.at[1] = LoadWord<From>(chunk + b * 64 + 32 + 2 * pair);
  } else if constexpr (kKind == HeadKind::kPowers) {
    head.at[0] = LoadShort<From>(chunk + b * kRow + pair);
  } else if constexpr (kKind == HeadKind::kEightBits) {
    head.at[0] = LoadShort<From>(chunk + 2 * b * kRow + pair);
    head.at[1] = LoadShort<From>(chunk + (2 * b + 1) * kRow + pair);
  } else if constexpr (kKind == HeadKind::kSixBits) {
    const std::byte* const small = chunk + 64 + pair;
    head.at[0] = LoadShort<From>(small + (b < 4 ? b : b + 4) * kRow);
    head.at[1] = LoadShort<From>(small + (b < 4 ? b + 4 : b - 4) * kRow);
    head.at[2] = b < 4 ? 0 : LoadShort<From>(small + b * kRow);
  } else if constexpr (kKind == HeadKind::kSigned8) {
    head.at[0] = LoadShort<From>(chunk + 32 + b * kRow + pair);
  } else if constexpr (kKind == HeadKind::kSigned16) {
    constexpr int kAt = kType == DType::kQ6_K ? 0 : 32;
    head.at[0] = LoadShort<From>(chunk + kAt + 2 * b * kRow + pair);
    head.at[1] = LoadShort<From>(chunk + kAt + (2 * b + 1) * kRow + pair);
  } else if constexpr (kKind == HeadKind::kNibbles) {
    head.at[0] = LoadShort<From>(chunk + 64 + 2 * b * kRow + pair);
    head.at[1] = LoadShort<From>(chunk + 64 + (2 * b + 1) * kRow + pair);
  }
  return head;
}

// The factors of 32 inputs of the lane's rows.
template <DType kType>
struct RowScales {
  static constexpr int kParts = PartsOf(ChainOf(kType));
  float scale[kParts][2];
  float minimum[kParts][2];  // chains with minima; per 256: negated
};

// The f16 of row kRow.
template <int kRow>
KVCACHE_DEVICE float HalfOf(std::uint32_t two) {
  return FromHalf(static_cast<std::uint16_t>(two >> 16 * kRow));
}

// Byte kByte of `word` as a float; below 2^23 a number is the low bits of itself plus 2^23.
template <int kByte>
KVCACHE_DEVICE float ByteOf(std::uint32_t word) {
  return Sub(FloatOf(BytePermute(word, 0x4b000000u, 0x7650u + kByte)), 8388608.0f);
}
template <int kByte>
KVCACHE_DEVICE float SignedByteOf(std::uint32_t word) {
  const std::uint32_t bits = BytePermute(word ^ 0x80808080u, 0x4b000000u, 0x7650u + kByte);
  return Sub(FloatOf(bits), 8388608.0f + 128.0f);
}

// 2^(e - 128), subnormal for e of 0 and 1.
KVCACHE_DEVICE float PowerOf(std::uint32_t e) {
  return FloatOf(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// The scales of row 2 g + kRow; `b` as above.
template <DType kType, int kRow>
KVCACHE_DEVICE void MakeRowScales(const OuterHead& outer, const InnerHead<kType>& inner, int b,
                                  RowScales<kType>& to) {
  constexpr HeadKind kKind = HeadKindOf(kType);
  constexpr int kParts = RowScales<kType>::kParts;
  if constexpr (kKind == HeadKind::kHalves) {
    to.scale[0][kRow] = HalfOf<kRow>(inner.at[0]);
  } else if constexpr (kKind == HeadKind::kHalves2) {
    to.scale[0][kRow] = HalfOf<kRow>(inner.at[0]);
    to.minimum[0][kRow] = HalfOf<kRow>(inner.at[1]);
  } else if constexpr (kKind == HeadKind::kPowers) {
    to.scale[0][kRow] = PowerOf(inner.at[0] >> 8 * kRow & 255u);
  } else if constexpr (kKind == HeadKind::kEightBits) {
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const std::uint32_t bits = inner.at[part] >> 8 * kRow & 255u;
      // The exponents' biases differ by 117; half of that because the table is doubled.
      to.scale[part][kRow] = Mul(FloatOf(bits << 20), 0x1p116f);
    }
  } else if constexpr (kKind == HeadKind::kSixBits) {
    const std::uint32_t own = inner.at[0];
    std::uint32_t scales = own & 0x3f3fu;
    std::uint32_t minima = inner.at[1] & 0x3f3fu;
    if (b >= 4) {
      scales = (own & 0x0f0fu) | (inner.at[1] >> 2 & 0x3030u);
      minima = (own >> 4 & 0x0f0fu) | (inner.at[2] >> 2 & 0x3030u);
    }
    to.scale[0][kRow] = Mul(HalfOf<kRow>(outer.d), ByteOf<kRow>(scales));
    to.minimum[0][kRow] = Mul(-HalfOf<kRow>(outer.dmin), ByteOf<kRow>(minima));
  } else if constexpr (kKind == HeadKind::kNibbles) {
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const std::uint32_t both = inner.at[part];
      to.scale[part][kRow] = Mul(HalfOf<kRow>(outer.d), ByteOf<kRow>(both & 0x0f0fu));
      to.minimum[part][kRow] = Mul(-HalfOf<kRow>(outer.dmin), ByteOf<kRow>(both >> 4 & 0x0f0fu));
    }
  } else {
    float d = HalfOf<kRow>(outer.d);
    constexpr float kFactor = codec::CodeTypeOf(kType).factor;
    if constexpr (kFactor != 1.0f) d = Mul(d, kFactor);
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      if constexpr (kKind == HeadKind::kOnlyD) {
        to.scale[part][kRow] = d;
      } else {
        to.scale[part][kRow] = Mul(d, SignedByteOf<kRow>(inner.at[part]));
      }
    }
  }
}

template <DType kType>
KVCACHE_DEVICE RowScales<kType> MakeScales(const OuterHead& outer, const InnerHead<kType>& inner,
                                           int b) {
  RowScales<kType> scales{};
  MakeRowScales<kType, 0>(outer, inner, b, scales);
  MakeRowScales<kType, 1>(outer, inner, b, scales);
  return scales;
}

}  // namespace kvcache::cuda::linear
