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

// A block's scale, and what bytes that are put into floats of 2^15 and more have to lose times it.
struct BlockScale {
  static constexpr float kOffset = -(32768.0f + 128.0f);
  float scale;
  float offset;  // kOffset · scale, exact: 9 bits times 11
};

// The 32 values of one cell's block.
template <DType kType>
HWY_INLINE void LoadBlock(const std::uint8_t* codes, const BlockScale& scale,
                          VF (&values)[kBlockRegs]) {
  const DF d;
  const VF factor = hn::Set(d, scale.scale);
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kType == DType::kQ8_0) {
    // A byte from 0 to 255 as the second of a float's is that float's value above 2^15, so one
    // permutation converts it; an exact multiply-add does the rest.
    const __m512i powers = _mm512_set1_epi32(0x47000000);
    const __m512i lanes = hn::ShiftLeft<8>(hn::Iota(hn::RebindToUnsigned<DF>(), 0u)).raw;
    const __m512i next = _mm512_add_epi32(lanes, _mm512_set1_epi32(16 << 8));
    const __m256i bytes = _mm256_xor_si256(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), _mm256_set1_epi8(-128));
    const __m512i both = _mm512_castsi256_si512(bytes);
    constexpr __mmask64 kSecond = 0x2222222222222222u;
    const VF offset = hn::Set(d, scale.offset);
    const auto value = [&](__m512i from) HWY_ATTR {
      const __m512i bits = _mm512_mask_permutexvar_epi8(powers, kSecond, from, both);
      return hn::MulAdd(VF{_mm512_castsi512_ps(bits)}, factor, offset);
    };
    values[0] = value(lanes);
    values[1] = value(next);
    return;
  }
#endif
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

// Neighbouring cells, from a block on. Codes of a tile's cells lie `stride` apart, the next tile's
// first cell lies `last_stride` behind a tile's last.
struct BlockCells {
  const std::uint8_t* codes;  // of the first cell
  const BlockScale* scales;   // likewise, `scale_stride` apart
  std::int64_t stride;
  std::int64_t last_stride;
  std::int64_t scale_stride;
  int lane;  // of the first cell
  int count;
};

// sums[r][i] += Σ_j weights[r][j] value[j][i] for the 32 NB values of NB blocks.
template <DType kType, int R, int NB>
HWY_INLINE void WeightBlocks(const BlockCells& in, const float* HWY_RESTRICT weights,
                             float* HWY_RESTRICT sums, std::size_t sum_stride, Fetch fetch,
                             Fetch keys) {
  constexpr int kLines = static_cast<int>(NB * CodeBytes(kType, kKvBlock) + 63) / 64;
  constexpr int kMostRows = std::max(1, (kManyRegisters ? 24 : 12) / kBlockRegs);
  if constexpr (R > kMostRows) {
    WeightBlocks<kType, kMostRows, NB>(in, weights, sums, sum_stride, fetch, keys);
    return WeightBlocks<kType, R - kMostRows, NB>(in, weights + kMostRows * kScoreStride,
                                                  sums + kMostRows * sum_stride, sum_stride, fetch,
                                                  keys);
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
  const BlockScale* scales = in.scales;
  int lane = in.lane;
  for (int j = 0; j < in.count; ++j) {
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
    fetch.Next<kLines>();
    keys.NextFar<NB>();
    ++lane;
    codes += lane % kCellTile == 0 ? in.last_stride : in.stride;
    scales += in.scale_stride;
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int i = 0; i < kVectors; ++i) hn::StoreU(sum[r][i], d, sums + r * sum_stride + i * kLanes);
  }
}

// Where one head's values and keys lie, and room for a split's scales as f32.
struct BlockValues {
  const std::uint8_t* head;
  const std::uint8_t* keys;
  std::int64_t key_bytes;  // of a cell
  std::int64_t v_dim;
  BlockScale* scales;  // [up to kSplitPositions cells][v_dim / 32]

  BlockValues(const LayerKv& layer, int kv_head, float* room)
      : head(reinterpret_cast<const std::uint8_t*>(layer.v) + BlockHeadValues(layer, kv_head)),
        keys(reinterpret_cast<const std::uint8_t*>(layer.k) +
             BytesOf(layer.k_type, kv_head * layer.cells * layer.shape.k_dim)),
        key_bytes(BytesOf(layer.k_type, kCellTile * layer.shape.k_dim) / kCellTile),
        v_dim(layer.shape.v_dim),
        scales(reinterpret_cast<BlockScale*>(room)) {}

  // `count` cells from `cell`, blocks from b, whose scales have been widened.
  template <DType kType>
  BlockCells From(std::int64_t cell, std::int64_t b, int count) const {
    const std::int64_t stride = CodeBytes(kType, v_dim);
    const int lane = static_cast<int>(cell % kCellTile);
    return {.codes = head + BlockTile(kType, v_dim, cell) + ValueCodes(kType, v_dim, lane) +
                     b * CodeBytes(kType, kKvBlock),
            .scales = scales + b,
            .stride = stride,
            .last_stride = BlockTileBytes(kType, v_dim) - (kCellTile - 1) * stride,
            .scale_stride = v_dim / kKvBlock,
            .lane = lane,
            .count = count};
  }
};

HWY_INLINE void StoreScales(const std::uint8_t* from, std::int64_t count, BlockScale* to) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  const auto* const scales = reinterpret_cast<const std::uint16_t*>(from);
  auto* const pairs = reinterpret_cast<float*>(to);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VF scale = WidenF16(d, scales + i);
    hn::StoreInterleaved2(scale, hn::Mul(scale, hn::Set(d, BlockScale::kOffset)), d, pairs + 2 * i);
  }
  for (; i < count; ++i) {
    const float scale = hn::GetLane(WidenF16(d1, scales + i));
    to[i] = {scale, scale * BlockScale::kOffset};
  }
}

// Scales of `count` neighbouring cells, at in.scales.
template <DType kType>
void WidenScales(const BlockValues& in, std::int64_t cell, int count) {
  const std::int64_t blocks = in.v_dim / kKvBlock;
  for (int done = 0; done < count;) {
    const std::int64_t lane = (cell + done) % kCellTile;
    const int part = std::min(kCellTile - static_cast<int>(lane), count - done);
    const std::uint8_t* const from =
        in.head + BlockTile(kType, in.v_dim, cell + done) + ValueScale(kType, in.v_dim, 0, lane);
    StoreScales(from, part * blocks, in.scales + done * blocks);
    done += part;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
