// Values of block types as f32, exactly (a small integer times an f16), and R rows' weighted sums
// of them, for every target.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_VALUES_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "backend/cpu/attention_micro-inl.h"
#include "backend/cpu/kv_blocks.h"
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kBlockRegs = static_cast<int>(kKvBlock) / kLanes;

// The 32 values of one cell's block.
template <DType kType>
HWY_INLINE void LoadBlock(const std::uint8_t* codes, float scale, VF (&values)[kBlockRegs]) {
  const DF d;
  const VF factor = hn::Set(d, scale);
  if constexpr (kType == DType::kQ8_0) {
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<std::int8_t, DF> d8;
    KVCACHE_UNROLL
    for (int i = 0; i < kBlockRegs; ++i) {
      const auto code = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(codes) + i * kLanes);
      values[i] = hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, code)), factor);
    }
  } else {
    const hn::RebindToUnsigned<DF> du;
    const hn::Rebind<std::uint8_t, DF> d8;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    // All sixteen values that a code can be fill a register: codes choose from it, by their
    // lowest four bits.
    const VF table = hn::Mul(hn::Iota(d, -8.0f), factor);
    const auto both = hn::PromoteTo(du, hn::LoadU(d8, codes));
    values[0] = VF{_mm512_permutexvar_ps(both.raw, table.raw)};
    values[1] = VF{_mm512_permutexvar_ps(hn::ShiftRight<4>(both).raw, table.raw)};
#else
    const hn::RebindToSigned<DF> di;
    const auto value = [&](auto code) HWY_ATTR {
      return hn::Mul(hn::ConvertTo(d, hn::Sub(hn::BitCast(di, code), hn::Set(di, 8))), factor);
    };
    KVCACHE_UNROLL
    for (int i = 0; i < kRegs; ++i) {
      const auto both = hn::PromoteTo(du, hn::LoadU(d8, codes + i * kLanes));
      values[i] = value(hn::And(both, hn::Set(du, 15u)));
      values[kRegs + i] = value(hn::ShiftRight<4>(both));
    }
#endif
  }
}

// Some neighbouring cells of one tile, from a block on.
struct BlockCells {
  const std::uint8_t* codes;  // of the first cell
  const float* scales;        // likewise
  std::int64_t code_stride;   // from cell to cell
  std::int64_t scale_stride;
  int cells;
  const std::uint8_t* ahead;  // what to fetch memory ahead of, and how much per cell
  std::int64_t ahead_stride;
};

// sums[r][i] += Σ_j weights[r][j] value[j][i] for the 32 NB values of NB blocks.
template <DType kType, int R, int NB>
HWY_INLINE void WeightBlocks(const BlockCells& in, const float* HWY_RESTRICT weights,
                             float* HWY_RESTRICT sums, std::size_t sum_stride) {
  constexpr int kMostRows = std::max(1, (kManyRegisters ? 24 : 12) / kBlockRegs);
  if constexpr (R > kMostRows) {
    WeightBlocks<kType, kMostRows, NB>(in, weights, sums, sum_stride);
    return WeightBlocks<kType, R - kMostRows, NB>(in, weights + kMostRows * kScoreStride,
                                                  sums + kMostRows * sum_stride, sum_stride);
  }
  constexpr int kVectors = NB * kBlockRegs;
  const DF d;
  VF sum[R][kVectors];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::LoadU(d, sums + r * sum_stride + i * kLanes);
  }
  const std::uint8_t* codes = in.codes;
  const float* scales = in.scales;
  const std::uint8_t* ahead = in.ahead;
  for (int j = 0; j < in.cells; ++j) {
    KVCACHE_UNROLL
    for (int b = 0; b < NB; ++b) {
      VF value[kBlockRegs];
      LoadBlock<kType>(codes + b * CodeBytes(kType, kKvBlock), scales[b], value);
      KVCACHE_UNROLL
      for (int r = 0; r < R; ++r) {
        const VF weight = hn::Set(d, weights[r * kScoreStride + j]);
        KVCACHE_UNROLL
        for (int i = 0; i < kBlockRegs; ++i) {
          VF& to = sum[r][b * kBlockRegs + i];
          to = hn::MulAdd(weight, value[i], to);
        }
      }
    }
    FetchAhead(ahead);
    codes += in.code_stride;
    scales += in.scale_stride;
    ahead += in.ahead_stride;
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int i = 0; i < kVectors; ++i) hn::StoreU(sum[r][i], d, sums + r * sum_stride + i * kLanes);
  }
}

// Where one head's values lie, and room for a tile's scales as f32.
struct BlockValues {
  const std::uint8_t* head;
  std::int64_t v_dim;
  float* scales;  // [16 cells][v_dim / 32]

  BlockValues(const LayerKv& layer, int kv_head, float* room)
      : head(reinterpret_cast<const std::uint8_t*>(layer.v) + BlockHeadValues(layer, kv_head)),
        v_dim(layer.shape.v_dim),
        scales(room) {}
};

// The sums over `count` neighbouring cells of one tile, all values.
template <DType kType, int R>
void WeightBlockTile(const BlockValues& in, std::int64_t cell, int count, const float* weights,
                     float* sums, std::size_t sum_stride) {
  constexpr int kAtOnce = std::clamp((kManyRegisters ? 16 : 8) / (R * kBlockRegs), 1, 4);  // blocks
  const std::int64_t blocks = in.v_dim / kKvBlock;
  const std::int64_t lane = cell % kCellTile;
  const std::uint8_t* const tile = in.head + BlockTile(kType, in.v_dim, cell);
  const std::uint8_t* const scales = tile + ValueScale(kType, in.v_dim, 0, lane);
  WidenRow<DType::kF16>(reinterpret_cast<const std::uint16_t*>(scales),
                        static_cast<std::size_t>(count * blocks), in.scales);
  // Each pass over the cells asks for its share of what lies ahead.
  const std::int64_t passes = blocks / kAtOnce + blocks % kAtOnce;
  const std::int64_t share = BlockTileBytes(kType, in.v_dim) / passes;
  BlockCells cells{.codes = tile + ValueCodes(kType, in.v_dim, lane),
                   .scales = in.scales,
                   .code_stride = CodeBytes(kType, in.v_dim),
                   .scale_stride = blocks,
                   .cells = count,
                   .ahead = tile,
                   .ahead_stride = share / kCellTile};
  const auto go_on = [&](int by) {
    cells.codes += by * CodeBytes(kType, kKvBlock);
    cells.scales += by;
    cells.ahead += share;
    sums += by * kKvBlock;
  };
  std::int64_t b = 0;
  for (; b + kAtOnce <= blocks; b += kAtOnce, go_on(kAtOnce)) {
    WeightBlocks<kType, R, kAtOnce>(cells, weights, sums, sum_stride);
  }
  for (; b < blocks; ++b, go_on(1)) WeightBlocks<kType, R, 1>(cells, weights, sums, sum_stride);
}

// The same over the positions of `range` that are in segments, ascending.
template <DType kType, int R>
void WeightBlockRange(const BlockValues& in, std::span<const Segment> segments, RowRange range,
                      const float* weights, float* sums, std::size_t sum_stride) {
  for (const Segment& segment : segments) {
    const int end = std::min(range.end, segment.end);
    for (int j = std::max(range.begin, segment.begin); j < end;) {
      const std::int64_t cell = std::int64_t{segment.cell} + (j - segment.begin);
      const int count = std::min(kCellTile - static_cast<int>(cell % kCellTile), end - j);
      WeightBlockTile<kType, R>(in, cell, count, weights + j, sums, sum_stride);
      j += count;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
