// Scores against keys of block types, for every target. Queries are quantised like the keys, and
// the dot products of small integers are exact, so their order does not matter.
//
// A score is one chain over the blocks of 32 values, ascending, by fused multiply-add from +0:
//   s = fma(dot · k_scale, q_scale, s), the product rounded (block_bytes-inl.h: SumScales)
// A query is multiplied by the scale, transformed (hadamard-inl.h) and quantised per block as
// activations are: scale max|q| / 127, values rounded to nearest even.
//
// Latents (kv_blocks.h) begin with blocks that share a scale, and so do their queries. The dot products of these
// blocks are added as integers first, and s begins as (float(dot) · k_scale) · q_scale.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_KEYS_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_KEYS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_KEYS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/block/pairs-inl.h"
#include "backend/cpu/common/block_codes-inl.h"
#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/common/hadamard-inl.h"
#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/cpu_target.h"
#include "backend/cpu/simd/highway-inl.h"
#include "backend/cpu/simd/simd-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

using QueryCode = block::HWY_NAMESPACE::Value;

// The quantised queries of R rows. They fit into the memory of the f32 queries: k_dim floats each.
template <int R>
struct BlockQueries {
  QueryCode* codes;  // [k_dim / 32][R][32], or twice 32 digits (common/block_dot-inl.h)
  float* scales;     // [k_dim / 32][R]
  std::int32_t*
      starts;  // [k_dim / 32][R], of each dot product: kSumStart - offset × Σ codes; without
               // kSumStart for the first `latent` blocks
  std::int64_t latent;  // blocks that share a scale

  BlockQueries(float* workspace, std::int64_t k_dim, std::int64_t latent_blocks = 0)
      : latent(latent_blocks) {
    static_assert(sizeof(QueryCode) * block::HWY_NAMESPACE::DigitsOf({255}) <= 2);
    codes = reinterpret_cast<QueryCode*>(workspace);
    scales = workspace + R * k_dim / 2;
    starts = reinterpret_cast<std::int32_t*>(scales + R * k_dim / kKvBlock);
  }
};

HWY_INLINE Quantizer QueryQuantizer(const float* x, std::int64_t count) {
  Largest max;
  for (std::int64_t i = 0; i < count; i += kLanes) max.Add(hn::LoadU(DF(), x + i));
  return Quantizer::Of(max.Get(), 127.0f);
}

// Quantises 32 values and returns the sum of the codes.
template <int kDigits>
HWY_INLINE std::int32_t QuantizeQueryBlock(const float* x, const Quantizer& quantizer,
                                           QueryCode* codes) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  auto total = hn::Zero(di);
  for (int i = 0; i < kKvBlock; i += kLanes) {
    const VF scaled = quantizer.inverse == 0.0f
                          ? hn::Zero(d)
                          : hn::Mul(hn::LoadU(d, x + i), hn::Set(d, quantizer.inverse));
    const auto rounded = hn::NearestInt(scaled);
    total = hn::Add(total, rounded);
    block::HWY_NAMESPACE::StoreInputs<kDigits>(rounded, codes + i);
  }
  return hn::GetLane(hn::SumOfLanes(di, total));
}

// Quantises the queries of R rows for the keys of a layer; rows from `rows` on repeat the first. `transformed`
// is workspace for k_dim floats.
template <int R>
void PackBlockQueries(const float* const* queries, int rows, const LayerKv& layer, float scale,
                      float* transformed, float* workspace) {
  constexpr int kDigits = block::HWY_NAMESPACE::DigitsOf({block::HWY_NAMESPACE::kAnyByte});
  const std::int64_t k_dim = layer.shape.k_dim;
  const auto offset = static_cast<std::int32_t>(CodeOffset(layer.k_type));
  const bool digits =
      kDigits > 1 && layer.k_type == DType::kQ8_0 && ByteProductsInUse() == ByteProducts::kOfTarget;
  const bool flips = layer.k_type == DType::kQ8_0 &&
                     block::HWY_NAMESPACE::FlipsSigns({block::HWY_NAMESPACE::kAnyByte});
  const BlockQueries<R> to(workspace, k_dim, LatentBlocks(layer));
  for (int r = 0; r < R; ++r) {
    const float* const query = queries[r < rows ? r : 0];
    for (std::int64_t d = 0; d < k_dim; ++d) transformed[d] = query[d] * scale;
    Quantizer of_latent;
    if (to.latent > 0) {
      TransformLatent(transformed, k_dim, layer.shape.v_dim);
      of_latent = QueryQuantizer(transformed, layer.shape.v_dim);
    } else {
      HadamardTransform(transformed, k_dim);
    }
    for (std::int64_t b = 0; b < k_dim / kKvBlock; ++b) {
      const float* const values = transformed + b * kKvBlock;
      QueryCode* const codes = to.codes + (b * R + r) * kKvBlock * (digits ? kDigits : 1);
      const Quantizer quantizer = b < to.latent ? of_latent : QueryQuantizer(values, kKvBlock);
      const std::int32_t sum = digits ? QuantizeQueryBlock<kDigits>(values, quantizer, codes)
                                      : QuantizeQueryBlock<1>(values, quantizer, codes);
      to.scales[b * R + r] = quantizer.unit;
      to.starts[b * R + r] =
          (b < to.latent ? 0 : block::HWY_NAMESPACE::kSumStart) - (flips ? 0 : offset * sum);
    }
  }
}

// Adds the dot products of block b to scores. For latents, `sum` has integers until the last of their blocks.
template <bool kLatent>
HWY_INLINE VF AddDots(block::HWY_NAMESPACE::VI dots, VF key_scales,
                      const block::HWY_NAMESPACE::SumScales& of_keys, float query_scale,
                      std::int64_t b, std::int64_t latent, VF sum) {
  const DF d;
  if constexpr (kLatent) {
    if (b < latent) {
      const block::HWY_NAMESPACE::VI total =
          hn::Add(hn::BitCast(hn::RebindToSigned<DF>(), sum), dots);
      if (b + 1 < latent) return hn::BitCast(d, total);
      return hn::Mul(hn::Mul(hn::ConvertTo(d, total), key_scales), hn::Set(d, query_scale));
    }
  }
  return hn::MulAdd(of_keys.Times(dots), hn::Set(d, query_scale), sum);
}

#if HWY_TARGET == HWY_AVX3_DL

// Line `group` of a block's eight: the values 4 group … 4 group + 3 of sixteen cells.
template <DType kType>
HWY_INLINE __m512i KeyLine(const std::uint8_t* block, int group) {
  if constexpr (kType == DType::kQ8_0) {
    return _mm512_loadu_si512(block + group * 64);
  } else {
    const __m512i both = _mm512_loadu_si512(block + group % 4 * 64);
    const __m512i codes = group < 4 ? both : _mm512_srli_epi16(both, 4);
    return _mm512_and_si512(codes, _mm512_set1_epi8(15));
  }
}

// Dot products of R rows with block b of NT tiles, which are `tile_bytes` apart.
template <DType kType, int R, int NT>
HWY_INLINE void DotBlock(const std::uint8_t* block, std::int64_t tile_bytes,
                         const BlockQueries<R>& q, std::int64_t b, __m512i (&dots)[R][NT]) {
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int t = 0; t < NT; ++t) dots[r][t] = _mm512_set1_epi32(q.starts[b * R + r]);
  }
  KVCACHE_UNROLL
  for (int g = 0; g < 8; ++g) {
    __m512i keys[NT];
    KVCACHE_UNROLL
    for (int t = 0; t < NT; ++t) keys[t] = KeyLine<kType>(block + t * tile_bytes, g);
    KVCACHE_UNROLL
    for (int r = 0; r < R; ++r) {
      std::int32_t four;
      std::memcpy(&four, q.codes + (b * R + r) * kKvBlock + g * 4, 4);
      const __m512i query = _mm512_set1_epi32(four);
      KVCACHE_UNROLL
      for (int t = 0; t < NT; ++t) dots[r][t] = _mm512_dpbusd_epi32(dots[r][t], keys[t], query);
    }
  }
}

// scores[r][0, 16 NT) for NT neighbouring tiles. No code exceeds kMaxCode.
template <DType kType, int R, int NT, Stream kFrom, int /*kMaxCode*/ = MaxCode(kType),
          bool kLatent = false>
HWY_INLINE void ScoreBlockTiles(const std::uint8_t* HWY_RESTRICT tile, std::int64_t k_dim,
                                const BlockQueries<R>& q, float* HWY_RESTRICT scores,
                                std::size_t score_stride, SplitPrefetch* prefetch = nullptr) {
  const DF d;
  const std::int64_t tile_bytes = BlockTileBytes(kType, k_dim);
  const std::int64_t block_bytes = CodeBytes(kType, kKvBlock) * kCellTile;
  VF sum[R][NT];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int t = 0; t < NT; ++t) sum[r][t] = hn::Zero(d);
  }
  const std::uint8_t* scales = tile + TileScales(kType, k_dim);
  for (std::int64_t b = 0; b < k_dim / kKvBlock; ++b, scales += kCellTile * 2) {
    __m512i dots[R][NT];
    DotBlock<kType, R, NT>(tile + b * block_bytes, tile_bytes, q, b, dots);
    if (kFrom == Stream::kMemory) {
      if (prefetch->HasOneRange()) {
        prefetch->Advance<NT * kBlockLines<kType>>();
      } else {
        prefetch->Advance<NT * PrefetchRate<kType>::kKeys>();
      }
    }
    KVCACHE_UNROLL
    for (int t = 0; t < NT; ++t) {
      const std::uint8_t* const from = scales + t * tile_bytes;
      const VF key_scales = WidenF16(d, reinterpret_cast<const std::uint16_t*>(from));
      const block::HWY_NAMESPACE::SumScales of_keys(key_scales);
      KVCACHE_UNROLL
      for (int r = 0; r < R; ++r) {
        sum[r][t] = AddDots<kLatent>(block::HWY_NAMESPACE::VI{dots[r][t]}, key_scales, of_keys,
                                     q.scales[b * R + r], b, q.latent, sum[r][t]);
      }
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int t = 0; t < NT; ++t) {
      hn::StoreU(sum[r][t], d, scores + r * score_stride + t * kCellTile);
    }
  }
}

#else

// Whether DotKeys takes codes of q4_0 as they are stored; otherwise they are unpacked first.
inline constexpr bool kTakesHalvesOfBytes = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3;

#if HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_AVX3

constexpr int KeyRowsInRegisters(block::HWY_NAMESPACE::Bytes /*bytes*/) {
  return block::HWY_NAMESPACE::kTileTokens < 4 ? 2 : 4;
}

// dots[0][r] = init[r] + Σ code × query over a block whose codes are bytes.
template <DType /*kType*/, block::HWY_NAMESPACE::Bytes kBytes, int kRows, class EachGroup>
HWY_INLINE void DotKeys(const std::uint8_t* codes, const QueryCode* x, const std::int32_t* init,
                        block::HWY_NAMESPACE::VI (&dots)[1][kRows][kRegs],
                        const EachGroup& each_group) {
  const std::uint8_t* const quants[1] = {codes};
  block::HWY_NAMESPACE::DotGroups<kBytes, block::HWY_NAMESPACE::Init::kCorrections, 8, kRows, 1>(
      quants, x, init, dots, each_group);
}

#endif

template <DType kType, block::HWY_NAMESPACE::Bytes kBytes, bool kLatent, int kRows, int R,
          class EachGroup>
HWY_INLINE void ScoreBlock(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t b,
                           const BlockQueries<R>& q, int first, VF (&sum)[R][kRegs],
                           const EachGroup& each_group) {
  const DF d;
  block::HWY_NAMESPACE::VI dots[1][kRows][kRegs];
  const std::int64_t row = b * R + first;
  DotKeys<kType, kBytes, kRows>(codes,
                                q.codes + row * kKvBlock * block::HWY_NAMESPACE::DigitsOf(kBytes),
                                q.starts + row, dots, each_group);
  KVCACHE_UNROLL
  for (int v = 0; v < kRegs; ++v) {
    const VF key_scales = WidenF16(d, reinterpret_cast<const std::uint16_t*>(scales) + v * kLanes);
    const block::HWY_NAMESPACE::SumScales of_keys(key_scales);
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sum[first + r][v] = AddDots<kLatent>(dots[0][r][v], key_scales, of_keys, q.scales[row + r], b,
                                           q.latent, sum[first + r][v]);
    }
  }
}

template <DType kType, block::HWY_NAMESPACE::Bytes kBytes, bool kLatent, int R, Stream kFrom>
void ScoreBlockTile(const std::uint8_t* HWY_RESTRICT tile, std::int64_t k_dim,
                    const BlockQueries<R>& q, float* HWY_RESTRICT scores, std::size_t score_stride,
                    SplitPrefetch* prefetch) {
  constexpr int kMost = KeyRowsInRegisters(kBytes);
  constexpr int kRows = R % 3 == 0 && kMost > 3 ? 3 : kMost;
  constexpr int kFirst = R < kRows ? R : kRows;
  const DF d;
  [[maybe_unused]] HWY_ALIGN std::uint8_t unpacked[8 * 64];
  VF sum[R][kRegs];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kRegs; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::int64_t b = 0; b < k_dim / kKvBlock; ++b) {
    const std::uint8_t* codes = tile + b * kCellTile * CodeBytes(kType, kKvBlock);
    if constexpr (!kTakesHalvesOfBytes) codes = BlockCodes<kType>(codes, unpacked);
    const std::uint8_t* const scales = tile + BlockScale(kType, k_dim, b, 0);
    constexpr int kLines = PrefetchRate<kType>::kKeys;
    constexpr int kSteps = 8;
    int step = 0;
    std::uintptr_t next = 0;
    if (kFrom == Stream::kMemory) {
      if (prefetch->HasOneRange()) prefetch->Advance<kBlockLines<kType> - kLines>();
      next = prefetch->Take<kLines>();
    }
    // Spreads the lines over the groups of the first rows: all at once would wait for each other.
    const auto ahead = [&]() HWY_ATTR {
      if (kFrom != Stream::kMemory) return;
      const int line = step * kLines / kSteps;
      ++step;
      if (step * kLines / kSteps != line)
        PrefetchToL2(next + static_cast<std::uintptr_t>(line * 64));
    };
    const auto nothing = [] {};
    ScoreBlock<kType, kBytes, kLatent, kFirst, R>(codes, scales, b, q, 0, sum, ahead);
    int r = kFirst;
    for (; r + kRows <= R; r += kRows) {
      ScoreBlock<kType, kBytes, kLatent, kRows, R>(codes, scales, b, q, r, sum, nothing);
    }
    constexpr int kRest = (R - kFirst) % kRows;
    if constexpr (kRest >= 2) {
      ScoreBlock<kType, kBytes, kLatent, 2, R>(codes, scales, b, q, r, sum, nothing);
      r += 2;
    }
    if constexpr (kRest % 2 == 1) {
      ScoreBlock<kType, kBytes, kLatent, 1, R>(codes, scales, b, q, r, sum, nothing);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kRegs; ++v) {
      hn::StoreU(sum[r][v], d, scores + r * score_stride + v * kLanes);
    }
  }
}

// scores[r][0, 16 NT) for NT neighbouring tiles. No code exceeds kMaxCode.
template <DType kType, int R, int NT, Stream kFrom, int kMaxCode = MaxCode(kType),
          bool kLatent = false>
void ScoreBlockTiles(const std::uint8_t* HWY_RESTRICT tile, std::int64_t k_dim,
                     const BlockQueries<R>& q, float* HWY_RESTRICT scores, std::size_t score_stride,
                     SplitPrefetch* prefetch = nullptr) {
  const auto score_with = [&]<block::HWY_NAMESPACE::Bytes kBytes>() HWY_ATTR {
    for (int t = 0; t < NT; ++t) {
      ScoreBlockTile<kType, kBytes, kLatent, R, kFrom>(tile + t * BlockTileBytes(kType, k_dim),
                                                       k_dim, q, scores + t * kCellTile,
                                                       score_stride, prefetch);
    }
  };
  constexpr bool kHasFours = HWY_ARCH_ARM_A64 || HWY_TARGET == HWY_AVX2;
  if (kHasFours && ByteProductsInUse() != ByteProducts::kOfTarget) {
    score_with.template operator()<block::HWY_NAMESPACE::Bytes{kMaxCode, kHasFours}>();
  } else {
    score_with.template operator()<block::HWY_NAMESPACE::Bytes{kMaxCode}>();
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
