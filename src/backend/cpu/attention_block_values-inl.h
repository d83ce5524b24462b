// R rows' weighted sums of values of block types, for every target: exact sums of integers, and so
// the same however they are made.
//
// Of one split, with weights p_j, and block b's scales d_jb and codes c_ji:
//   w_j = p_j · d_jb, 0 where p_j is 0      u = max |w_j| / 32512
//   q_j = w_j · (1/u), one rounding to the nearest integer, to even
//   a_i = float(Σ_j q_j c_ji) · u
// As two digits, q = 256 high + low with both from -128 to 127, q_j goes through dot products of
// bytes; 32512 leaves room for the rounding in them. The sums stay below 2^31.
//
// A position that a row does not see has a weight of 0 and adds nothing, whatever its codes are.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "backend/cpu/attention_block_codes-inl.h"
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/attention_micro-inl.h"
#include "backend/cpu/attention_split.h"
#include "backend/cpu/kv_blocks.h"
#include "backend/cpu/linear_block_dot-inl.h"
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

inline constexpr float kMostWeight = 127 * 256;

// What R rows weigh and where their sums go.
struct WeightedRows {
  std::span<const Segment> segments;
  std::span<const RowRange> ranges;  // [R]
  const float* weights;              // [R][kScoreStride]
  float* sums;                       // [R][sum_stride]
  std::size_t sum_stride;
};

// Tiles of one head's values.
struct ValueTiles {
  const std::uint8_t* head;
  std::int64_t v_dim;
  std::uint32_t offset;  // what codes are more than the integers they stand for
  Successors* next;      // where values come from memory

  std::int64_t blocks() const { return v_dim / kKvBlock; }
};

// Room for the steps between weights and sums.
template <int R>
struct BlockRoom {
  float* weights;       // [R][kScoreStride]: a segment's, a tile's lanes side by side
  std::uint8_t* codes;  // [tiles][R][kWeightBytes]: the same as integers, times one block's scales
  Quantiser* units;     // [blocks][R]

  explicit BlockRoom(float* room)
      : weights(room),
        codes(reinterpret_cast<std::uint8_t*>(room + R * kScoreStride)),
        units(reinterpret_cast<Quantiser*>(room + 2 * R * kScoreStride)) {}
};

// Neighbouring tiles, and what R rows' weights of their cells are.
template <int R>
struct WeightedTiles {
  const std::uint8_t* first;
  int count;
  BlockRoom<R> room;
};

// --- weights as integers

// Calls visit(tiles) for the cells of each segment that any row sees.
template <DType kType, int R, class Visit>
HWY_INLINE void ForTiles(const ValueTiles& values, const WeightedRows& rows,
                         const BlockRoom<R>& room, const Visit& visit) {
  RowRange any{kSplitPositions, 0};
  for (const RowRange& range : rows.ranges) {
    if (range.empty()) continue;
    any = {std::min(any.begin, range.begin), std::max(any.end, range.end)};
  }
  for (const Segment& segment : rows.segments) {
    const int begin = std::max(any.begin, segment.begin);
    const int end = std::min(any.end, segment.end);
    if (begin >= end) continue;
    const std::int64_t cell = std::int64_t{segment.cell} + (begin - segment.begin);
    const int lane = static_cast<int>(cell % kCellTile);
    const int count = (lane + end - begin + kCellTile - 1) / kCellTile;
    for (int r = 0; r < R; ++r) {
      float* const to = room.weights + r * kScoreStride;
      const int first = std::clamp(rows.ranges[static_cast<std::size_t>(r)].begin, begin, end);
      const int last = std::clamp(rows.ranges[static_cast<std::size_t>(r)].end, first, end);
      std::fill_n(to, lane + first - begin, 0.0f);
      std::copy(rows.weights + r * kScoreStride + first, rows.weights + r * kScoreStride + last,
                to + lane + first - begin);
      std::fill(to + lane + last - begin, to + count * kCellTile, 0.0f);
    }
    visit(WeightedTiles<R>{values.head + BlockTile(kType, values.v_dim, cell), count, room});
  }
}

template <DType kType>
HWY_INLINE VF ScalesOf(const std::uint8_t* tile, std::int64_t v_dim, std::int64_t block, int lane) {
  return WidenF16(
      DF(), reinterpret_cast<const std::uint16_t*>(tile + BlockScale(kType, v_dim, block, lane)));
}

// units[b][r].unit becomes the largest weight times scale so far.
template <DType kType, int R, Stream kFrom>
void FindLargest(const ValueTiles& values, const WeightedTiles<R>& tiles) {
  const DF d;
  const std::int64_t tile_bytes = BlockTileBytes(kType, values.v_dim);
  for (std::int64_t b = 0; b < values.blocks(); ++b) {
    Largest most[R];
    const std::uint8_t* tile = tiles.first;
    for (int t = 0; t < tiles.count; ++t, tile += tile_bytes) {
      if (kFrom == Stream::kMemory) values.next->Request<kPacedLines<kType>>();
      KVCACHE_UNROLL
      for (int v = 0; v < kRegs; ++v) {
        const VF scale = ScalesOf<kType>(tile, values.v_dim, b, v * kLanes);
        const float* const weights = tiles.room.weights + t * kCellTile + v * kLanes;
        KVCACHE_UNROLL
        for (int r = 0; r < R; ++r) {
          const VF weight = hn::LoadU(d, weights + r * kScoreStride);
          most[r].Add(hn::IfThenElseZero(hn::Ne(weight, hn::Zero(d)), hn::Mul(weight, scale)));
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      float& unit = tiles.room.units[b * R + r].unit;
      unit = most[r].Or(unit);
    }
  }
}

// A float of 1.5 · 2^23 and a small integer has that integer in its lowest bits: adding rounds to
// it.
inline constexpr float kIntegers = 12582912.0f;

using VWeight = hn::Vec<hn::RebindToSigned<DF>>;

#if HWY_TARGET == HWY_AVX3_DL

// A tile's codes of a row: for each four cells, their low digits and their high ones. Whatever is
// 128 more has the high digit in its second byte.
inline constexpr float kIntegersBegin = kIntegers + 128.0f;
inline constexpr std::size_t kWeightBytes = 64;
inline constexpr std::size_t kQuadBytes = kWeightBytes / 4;

HWY_INLINE void StoreCodes(VWeight codes, int, std::uint8_t* to) {
  const __m512i digits = _mm512_xor_si512(codes.raw, _mm512_set1_epi32(128));
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 2, 2, 2, 2, 2, 2, 2));
  _mm512_storeu_si512(to, _mm512_shuffle_epi8(digits, order));
}

#else

// A tile's codes of a row, 16 bits each; DotGroups takes rows a block apart.
inline constexpr float kIntegersBegin = kIntegers;
inline constexpr std::size_t kWeightBytes = kKvBlock * sizeof(std::int16_t);

HWY_INLINE void StoreCodes(VWeight codes, int lane, std::uint8_t* to) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::int16_t, DF> d16;
  const VWeight integers = hn::Sub(codes, hn::BitCast(di, hn::Set(DF(), kIntegersBegin)));
  hn::StoreU(hn::DemoteTo(d16, integers), d16, reinterpret_cast<std::int16_t*>(to) + lane);
}

#endif

// Writes the codes of R rows' weights times block b's scales; sums[r] is Σ of them. What a row does
// not see is 0, whatever the scale.
template <DType kType, int R, Stream kFrom>
HWY_INLINE void QuantiseWeights(const ValueTiles& values, const WeightedTiles<R>& tiles,
                                std::int64_t b, std::uint32_t (&sums)[R]) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const VF begin = hn::Set(d, kIntegersBegin);
  const std::int64_t tile_bytes = BlockTileBytes(kType, values.v_dim);
  VF inverse[R];
  VWeight sum[R];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    inverse[r] = hn::Set(d, tiles.room.units[b * R + r].inverse);
    sum[r] = hn::Zero(di);
  }
  const std::uint8_t* tile = tiles.first;
  std::uint8_t* to = tiles.room.codes;
  for (int t = 0; t < tiles.count; ++t, tile += tile_bytes, to += R * kWeightBytes) {
    if (kFrom == Stream::kMemory) values.next->Request<kPacedLines<kType> + 1>();
    for (int lane = 0; lane < kCellTile; lane += kLanes) {
      const VF scale = ScalesOf<kType>(tile, values.v_dim, b, lane);
      const float* const weights = tiles.room.weights + t * kCellTile + lane;
      KVCACHE_UNROLL
      for (int r = 0; r < R; ++r) {
        const VF weight = hn::LoadU(d, weights + r * kScoreStride);
        const VF scaled = hn::IfThenElseZero(hn::Ne(weight, hn::Zero(d)), hn::Mul(weight, scale));
        const VWeight codes = hn::BitCast(di, hn::MulAdd(scaled, inverse[r], begin));
        sum[r] = hn::Add(sum[r], codes);
        StoreCodes(codes, lane, to + static_cast<std::size_t>(r) * kWeightBytes);
      }
    }
  }
  const auto cells = static_cast<std::uint32_t>(tiles.count * kCellTile);
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    sums[r] = static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(di, sum[r]))) -
              cells * std::bit_cast<std::uint32_t>(kIntegersBegin);
  }
}

#if HWY_TARGET == HWY_AVX3_DL

// The 16 values `half` of a block for four cells.
template <DType kType>
HWY_INLINE __m512i ValueLine(const std::uint8_t* block, int quad, int half) {
  if constexpr (kType == DType::kQ8_0) {
    return _mm512_loadu_si512(block + (half * 4 + quad) * 64);
  } else {
    const __m512i both = _mm512_loadu_si512(block + quad * 64);
    const __m512i codes = half == 0 ? both : _mm512_srli_epi16(both, 4);
    return _mm512_and_si512(codes, _mm512_set1_epi8(15));
  }
}

HWY_INLINE __m512i FourWeights(const std::uint8_t* codes) {
  std::int32_t four;
  std::memcpy(&four, codes, 4);
  return _mm512_set1_epi32(four);
}

// Adds what kRows rows from row `first` weigh of block b to their sums.
template <DType kType, int R, int kRows, Stream kFrom>
HWY_INLINE void AddProducts(const ValueTiles& values, const WeightedTiles<R>& tiles, std::int64_t b,
                            int first, const std::uint32_t (&code_sums)[R], float* sums,
                            std::size_t sum_stride) {
  const std::int64_t tile_bytes = BlockTileBytes(kType, values.v_dim);
  const std::uint8_t* block = tiles.first + b * CodeBytes(kType, kKvBlock) * kCellTile;
  const std::uint8_t* codes = tiles.room.codes + static_cast<std::size_t>(first) * kWeightBytes;
  __m512i low[kRows][2];
  __m512i high[kRows][2];
  KVCACHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVCACHE_UNROLL
    for (int half = 0; half < 2; ++half) low[r][half] = high[r][half] = _mm512_setzero_si512();
  }
  for (int t = 0; t < tiles.count; ++t, block += tile_bytes, codes += R * kWeightBytes) {
    KVCACHE_UNROLL
    for (int quad = 0; quad < 4; ++quad) {
      __m512i value[2];
      KVCACHE_UNROLL
      for (int half = 0; half < 2; ++half) value[half] = ValueLine<kType>(block, quad, half);
      if (kFrom == Stream::kMemory) values.next->Request<kPacedLines<kType>>();
      KVCACHE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const std::uint8_t* const four =
            codes + static_cast<std::size_t>(r) * kWeightBytes + quad * kQuadBytes;
        const __m512i lows = FourWeights(four);
        const __m512i highs = FourWeights(four + 4);
        KVCACHE_UNROLL
        for (int half = 0; half < 2; ++half) {
          low[r][half] = _mm512_dpbusd_epi32(low[r][half], value[half], lows);
          high[r][half] = _mm512_dpbusd_epi32(high[r][half], value[half], highs);
        }
      }
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512i correction =
        _mm512_set1_epi32(static_cast<std::int32_t>(-values.offset * code_sums[first + r]));
    KVCACHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float* const to = sums + (first + r) * sum_stride + b * kKvBlock + half * 16;
      const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(high[r][half], 8), low[r][half]);
      const __m512i all = _mm512_add_epi32(_mm512_loadu_si512(to), correction);
      _mm512_storeu_si512(to, _mm512_add_epi32(all, both));
    }
  }
}

// Rows whose sums fit into the registers.
template <int R>
inline constexpr int kRowsInRegisters = R == 8 ? 4 : R;

#else

// Adds what kRows rows from row `first` weigh of block b to their sums.
template <DType kType, int R, int kRows, Stream kFrom>
HWY_INLINE void AddProducts(const ValueTiles& values, const WeightedTiles<R>& tiles, std::int64_t b,
                            int first, const std::uint32_t (&code_sums)[R], float* sums,
                            std::size_t sum_stride) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const std::int64_t tile_bytes = BlockTileBytes(kType, values.v_dim);
  const std::uint8_t* block = tiles.first + b * CodeBytes(kType, kKvBlock) * kCellTile;
  const auto* codes = reinterpret_cast<const std::int16_t*>(tiles.room.codes) + first * kKvBlock;
  HWY_ALIGN std::uint8_t room[kKvBlock * kCellTile];
  const auto add = [&](int r, int i, auto more) HWY_ATTR {
    float* const to = sums + (first + r) * sum_stride + b * kKvBlock + i;
    const auto sum = hn::Add(hn::BitCast(di, hn::LoadU(d, to)), more);
    hn::StoreU(hn::BitCast(d, sum), d, to);
  };
  for (int t = 0; t < tiles.count; ++t, block += tile_bytes, codes += R * kKvBlock) {
    const std::uint8_t* const bytes = BlockCodes<kType>(block, room);
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* const lines[1] = {bytes + half * kKvBlock / 2 * kCellTile};
      hn::Vec<hn::RebindToSigned<DF>> dots[1][kRows][kRegs];
      block::HWY_NAMESPACE::DotGroups<block::HWY_NAMESPACE::Init::kZero, 4, kRows, 1>(
          lines, codes, nullptr, dots);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kRegs; ++v) add(r, half * 16 + v * kLanes, dots[0][r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const auto correction =
        hn::Set(di, static_cast<std::int32_t>(-values.offset * code_sums[first + r]));
    for (int i = 0; i < kKvBlock; i += kLanes) add(r, i, correction);
  }
}

template <int R>
inline constexpr int kRowsInRegisters = R % 2 == 0 ? 2 : 1;

#endif

// --- sums

// From integers, which the floats' bits are, to what they stand for.
template <int R>
void ScaleSums(const ValueTiles& values, const BlockRoom<R>& room, float* sums,
               std::size_t sum_stride) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  for (int r = 0; r < R; ++r) {
    for (std::int64_t i = 0; i < values.v_dim; i += kLanes) {
      float* const at = sums + r * sum_stride + i;
      const VF unit = hn::Set(d, room.units[i / kKvBlock * R + r].unit);
      const VF sum = hn::ConvertTo(d, hn::BitCast(di, hn::LoadU(d, at)));
      hn::StoreU(hn::Mul(sum, unit), d, at);
    }
  }
}

// rows.sums[r][0, v_dim) of R rows. `space` holds BlockRoomFloats.
template <DType kType, int R, Stream kFrom>
void WeightBlocks(const ValueTiles& values, const WeightedRows& rows, float* space) {
  constexpr int kRows = kRowsInRegisters<R>;
  static_assert(kWeightBytes == kCellTile * sizeof(float) && R % kRows == 0 && R <= kMostBlockRows);
  const BlockRoom<R> room(space);
  const std::int64_t blocks = values.blocks();
  std::fill_n(room.units, blocks * R, Quantiser{});
  ForTiles<kType>(values, rows, room,
                  [&](const auto& tiles) HWY_ATTR { FindLargest<kType, R, kFrom>(values, tiles); });
  for (std::int64_t i = 0; i < blocks * R; ++i) {
    room.units[i] = Quantiser::Of(room.units[i].unit, kMostWeight);
  }
  for (int r = 0; r < R; ++r) {
    std::fill_n(rows.sums + r * rows.sum_stride, rows.sum_stride, 0.0f);
  }
  ForTiles<kType>(values, rows, room, [&](const auto& tiles) HWY_ATTR {
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::uint32_t code_sums[R];
      QuantiseWeights<kType, R, kFrom>(values, tiles, b, code_sums);
      AddProducts<kType, R, kRows, kFrom>(values, tiles, b, 0, code_sums, rows.sums,
                                          rows.sum_stride);
      for (int first = kRows; first < R; first += kRows) {
        AddProducts<kType, R, kRows, Stream::kScratch>(values, tiles, b, first, code_sums,
                                                       rows.sums, rows.sum_stride);
      }
    }
  });
  ScaleSums<R>(values, room, rows.sums, rows.sum_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
