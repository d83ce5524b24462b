// The product of a few tokens with panels, for targets with enough registers (kFewTokens): unpacked bytes
// stay in registers, as for a single token, and each serves the tokens of a tile.
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_FEW_TOKENS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_FEW_TOKENS_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_FEW_TOKENS_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_FEW_TOKENS_INL_H_
#endif

#include <algorithm>

#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/linear/block/one_token-inl.h"
#include "backend/cpu/linear/block/tile-inl.h"
#include "backend/cpu/linear/block/unpack-inl.h"
#include "backend/cpu/simd/simd-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Adds the kPart-th inputs that share a scale, of the 32 inputs `b` of a chunk, which `lines` hold.
template <class Format, int kPart, int kTokens>
HWY_INLINE void AddLinesOfFew(const std::uint8_t* lines, const typename Format::Head& head,
                              const TileInput& x, std::int64_t b, Sums<kTokens, 1>& sum) {
  constexpr ProductKind kKind = Format::kProduct;
  constexpr int kInputs = 4 * GroupsOf(kKind.chain);
  const std::int64_t i = b * PartsOf(kKind.chain) + kPart;
  const DF d;
  std::int32_t starts[kTokens];
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) starts[t] = StartOf<kKind>(x, i, t, kTokens);
  TokenDots<InitOf(kKind), kTokens> dots(x.values + b * kTokens * kBlock + kPart * kInputs, starts);
  Format::template Unpack<kPart>(lines, dots);
  const VF scale = head.Scales(i).r[0];
  if constexpr (IsPer256(kKind.chain)) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      sum[0][t][0] = hn::MulAdd(hn::ConvertTo(d, dots.Dot(t)), scale, sum[0][t][0]);
    }
  } else {
    const SumScales scales(scale);
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const VF scaled = scales.template Times<SumStartOf(kKind)>(dots.Dot(t));
      sum[0][t][0] = hn::MulAdd(scaled, hn::Set(d, x.scales[i * kTokens + t]), sum[0][t][0]);
    }
  }
  if constexpr (HasMinima(kKind.chain)) {
    const VF minimum = head.Minima(i).r[0];
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      sum[0][t][0] = hn::MulAdd(minimum, SumOf<kKind.chain>(x, i, t, kTokens), sum[0][t][0]);
    }
  }
}

// Multiplies the tile that begins with token `begin` with a panel. Prefetches the panel's weights, and those
// behind it, if `is_first`.
template <class Format, int kTokens>
void MultiplyFew(const Product& product, std::int64_t panel, std::int64_t begin, bool is_first,
                 TileSums y) {
  constexpr ProductKind kKind = Format::kProduct;
  constexpr std::int64_t kBytes = LayoutOf(Format::kType).body_bytes;
  const QuantizedX& x = product.x;
  const auto* chunk_at = reinterpret_cast<const std::uint8_t*>(product.panels) +
                         panel * PanelBytes(Format::kType, x.inputs);
  Sums<kTokens, 1> sum;
  LoadSums(TileSums{}, sum);
  for (std::int64_t c = 0; c < Chunks(x.inputs); ++c) {
    const std::int64_t blocks = BlocksOf(x.inputs, c);
    const TileInput inputs = InputOf<kKind>(x, c, begin);
    if (is_first) PrefetchAhead<HeadBytes(Format::kType, kChunkBlocks)>(chunk_at);
    const typename Format::Head head(chunk_at);
    const std::uint8_t* const lines = chunk_at + HeadBytes(Format::kType, blocks);
    if constexpr (IsPer256(kKind.chain)) LoadSums(TileSums{}, sum);
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (is_first) PrefetchAhead<kBytes>(lines + b * kBytes);
      AddLinesOfFew<Format, 0>(lines + b * kBytes, head, inputs, b, sum);
      if constexpr (PartsOf(kKind.chain) == 2) {
        AddLinesOfFew<Format, 1>(lines + b * kBytes, head, inputs, b, sum);
      }
    }
    if constexpr (IsPer256(kKind.chain)) {
      AddChunk(sum, inputs, y);
      y.from = y.to;
      y.from_stride = y.to_stride;
    }
    chunk_at += ChunkBytes(Format::kType, blocks);
  }
  if constexpr (!IsPer256(kKind.chain)) StoreSums(sum, y);
}

// Calls MultiplyFew with the tile's size as a compile-time constant.
template <class Format, int kTokens>
HWY_INLINE void MultiplyFewOf(std::int64_t tokens, const Product& product, std::int64_t panel,
                              std::int64_t begin, const TileSums& y) {
  if (tokens == kTokens || kTokens == 2) {
    MultiplyFew<Format, kTokens>(product, panel, begin, begin == 0, y);
  } else {
    MultiplyFewOf<Format, std::max(kTokens - 1, 2)>(tokens, product, panel, begin, y);
  }
}

// Multiplies 2 to kFewTokens tokens with panels [begin, end), panel by panel: the first tile reads a panel
// from memory, a second one from the caches. `sums` has 16 values for each token of a tile.
template <class Format>
void MultiplyFewTokens(const Product& product, std::int64_t begin, std::int64_t end,
                       const TokenTiles& tiles, float* sums) {
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t rows = product.outputs - panel * kPanelRows;
    for (std::int64_t tile = 0; tile < tiles.count(); ++tile) {
      const std::int64_t first = tiles.Begin(tile);
      const std::int64_t tokens = tiles.Size(tile);
      float* const y = product.y + first * product.outputs + panel * kPanelRows;
      TileSums to{nullptr, 0, y, product.outputs};
      if (rows < kPanelRows) to = {nullptr, 0, sums, kPanelRows};
      MultiplyFewOf<Format, kFewTileTokens>(tokens, product, panel, first, to);
      for (std::int64_t t = 0; t < tokens && rows < kPanelRows; ++t) {
        StoreRows(sums + t * kPanelRows, rows, y + t * product.outputs);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif

#endif  // per-target include guard
