// Adds the sums of integers that matrix tiles have computed to the sums of floats of a tile's outputs: the chains of
// docs/design/exactness.md, in the vectors of AVX3_DL.
#if defined(KVCACHE_BACKEND_CPU_TILES_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_TILES_FOLD_INL_H_
#undef KVCACHE_BACKEND_CPU_TILES_FOLD_INL_H_
#else
#define KVCACHE_BACKEND_CPU_TILES_FOLD_INL_H_
#endif

#include "backend/cpu/linear/block/multiply-inl.h"
#include "backend/cpu/linear/tiles/format-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

// A tile of tokens and up to kStepScales of the scales of a chunk.
struct TileStep {
  TileInput x;
  std::int64_t tokens;  // of the tile
  std::int64_t first;   // of the scales
  std::int64_t scales;
  bool begins_chunk;
  bool ends_chunk;
  float* y;  // [panel][token][16 rows]
};

// The tokens that a fold keeps in registers, times two panels.
inline constexpr int kFoldTokens = 8;

// Folds a step for kTokens tokens from `from` on.
template <ProductKind kKind, int kTokens, int kPanels>
HWY_NOINLINE void FoldTokens(const ChunkWorkspace* chunks, const TileStep& step, std::int64_t from,
                             TileWorkspace& workspace, int buffer) {
  constexpr Chain kChain = kKind.chain;
  constexpr bool kPer256 = IsPer256(kChain);
  const DF d;
  float* const between = kPer256 ? workspace.partial : step.y;
  const auto at = [&](int p, int t) { return (p * step.tokens + from + t) * kPanelRows; };
  VF sum[kPanels][kTokens];
  if (kPer256 && step.begins_chunk) {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) sum[p][t] = hn::Zero(d);
    }
  } else {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) sum[p][t] = hn::Load(d, between + at(p, t));
    }
  }
  for (std::int64_t s = 0; s < step.scales; ++s) {
    const std::int64_t i = step.first + s;
    VF scale[kPanels];
    VF minimum[kPanels];
    const std::int32_t* dots[kPanels];
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      scale[p] = hn::Load(d, chunks[p].scales + i * kPanelRows);
      if constexpr (HasMinima(kChain)) minimum[p] = hn::Load(d, chunks[p].minima + i * kPanelRows);
      dots[p] = workspace.sums[buffer][s][p] + from * kPanelRows;
    }
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const std::int64_t token = i * step.tokens + from + t;
      KVCACHE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const VF dot = hn::ConvertTo(d, hn::Load(DI(), dots[p] + t * kPanelRows));
        if constexpr (kPer256) {
          sum[p][t] = hn::MulAdd(dot, scale[p], sum[p][t]);
        } else {
          sum[p][t] =
              hn::MulAdd(hn::Mul(dot, scale[p]), hn::Set(d, step.x.scales[token]), sum[p][t]);
        }
        if constexpr (kChain == Chain::kPer256Of16WithMinimum) {
          const VF inputs = hn::ConvertTo(d, hn::Set(DI(), step.x.corrections[token]));
          sum[p][t] = hn::MulAdd(minimum[p], inputs, sum[p][t]);
        } else if constexpr (HasMinima(kChain)) {
          sum[p][t] = hn::MulAdd(minimum[p], hn::Set(d, step.x.sums[token]), sum[p][t]);
        }
      }
    }
  }
  const bool ends = kPer256 && step.ends_chunk;
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      float* const to = (ends ? step.y : between) + at(p, t);
      VF value = sum[p][t];
      if (ends) value = hn::MulAdd(value, hn::Set(d, step.x.scales[from + t]), hn::Load(d, to));
      hn::Store(value, d, to);
    }
  }
}

// Calls FoldTokens with the number of tokens as a compile-time constant.
template <ProductKind kKind, int kTokens, int kPanels>
HWY_INLINE void FoldTokensOf(const ChunkWorkspace* chunks, const TileStep& step, std::int64_t from,
                             std::int64_t tokens, TileWorkspace& workspace, int buffer) {
  if (tokens == kTokens) {
    FoldTokens<kKind, kTokens, kPanels>(chunks, step, from, workspace, buffer);
  } else if constexpr (kTokens > kMinMatrixTokens / 2) {
    FoldTokensOf<kKind, kTokens - 1, kPanels>(chunks, step, from, tokens, workspace, buffer);
  }
}

// Folds one of the two parts of a tile's tokens; a tile of at most kFoldTokens has one. A tile has at least
// kMinMatrixTokens, and so a part at least half of them.
template <ProductKind kKind, int kPanels>
HWY_INLINE void FoldPart(const ChunkWorkspace* chunks, const TileStep& step, int part,
                         TileWorkspace& workspace, int buffer) {
  const TokenTiles parts(step.tokens, kFoldTokens);
  if (part >= parts.count()) return;
  FoldTokensOf<kKind, kFoldTokens, kPanels>(chunks, step, parts.Begin(part), parts.Size(part),
                                            workspace, buffer);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL

#endif  // per-target include guard
