// The product of block-quantised weights with a call's activations, for every target.
//
// The work is cut three ways, and each cut keeps data in a cache that fits it:
//
//   tile    up to kTileTokens tokens × kTilePanels panels of 16 rows: their sums stay in registers
//   span    512 inputs of a panel: unpacked once to bytes and f32 scales, in the first-level cache,
//           then multiplied with every tile of the group
//   group   96 to 512 tokens: their quantised inputs and sums stay in the second-level cache, so
//           that a prefill reads the weights once per group
//
// A single token skips the tiles (one_token-inl.h), and so do a few tokens on some targets
// (few_tokens-inl.h).
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_MULTIPLY_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_MULTIPLY_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_MULTIPLY_INL_H_
#endif

#include <algorithm>

#include "backend/cpu/common/token_tiles.h"
#include "backend/cpu/cpu_target.h"
#include "backend/cpu/linear/block/coded-inl.h"
#include "backend/cpu/linear/block/few_tokens-inl.h"
#include "backend/cpu/linear/block/format-inl.h"
#include "backend/cpu/linear/block/one_token-inl.h"
#include "backend/cpu/linear/block/tile-inl.h"
#include "backend/cpu/linear/block/unpack-inl.h"
#include "backend/cpu/simd/simd-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The tiles that are multiplied with a span of weights while it is unpacked. Their inputs and sums
// should stay in the second-level cache.
struct Group {
  std::int64_t begin;  // tiles
  std::int64_t end;
};

inline std::int64_t TilesPerGroup(std::int64_t inputs) {
  return std::clamp(kGroupValues / inputs, kMinGroupTokens, kMaxGroupTokens) / kTileTokens;
}

// Writes the sums [token][panel][16] of the last panels, some rows of which do not exist.
template <int kPanels>
void StoreLastRows(const Product& product, std::int64_t panel, std::int64_t first_token,
                   std::int64_t tokens, const float* sums) {
  for (std::int64_t p = 0; p < kPanels; ++p) {
    const std::int64_t row = (panel + p) * kPanelRows;
    for (std::int64_t t = 0; t < tokens; ++t) {
      StoreRows(sums + (t * kPanels + p) * kPanelRows, product.outputs - row,
                product.y + (first_token + t) * product.outputs + row);
    }
  }
}

// Prefetches part `part` of `parts` of as many bytes as a span has, kPrefetchBytes behind it. Each
// tile prefetches a part: all lines at once would wait for each other.
HWY_INLINE void PrefetchPart(const std::uint8_t* span, std::int64_t bytes, std::int64_t part,
                             std::int64_t parts) {
  const std::int64_t part_bytes = (bytes / kLine + parts - 1) / parts * kLine;
  const std::int64_t end = std::min((part + 1) * part_bytes, bytes);
  for (std::int64_t i = part * part_bytes; i < end; i += kLine) {
    hwy::Prefetch(span + kPrefetchBytes + i);
  }
}

// Unpacks the next chunks of the panels at `at` and returns their bytes in a panel.
template <class Format, int kPanels>
HWY_INLINE std::int64_t UnpackSpan(const std::uint8_t* at, std::int64_t inputs,
                                   Prefetching prefetching, ChunkWorkspace* workspace,
                                   Span<kPanels>& span) {
  const std::int64_t panel_bytes = PanelBytes(Format::kType, inputs);
  std::int64_t bytes = 0;
  span.chunks = static_cast<int>(std::min<std::int64_t>(kSpanChunks, Chunks(inputs) - span.first));
  for (int c = 0; c < span.chunks; ++c) {
    const std::int64_t blocks = BlocksOf(inputs, span.first + c);
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      span.w[c][p] = UnpackChunk<Format>(at + bytes + p * panel_bytes, blocks, prefetching,
                                         workspace[c * kPanels + p]);
    }
    bytes += ChunkBytes(Format::kType, blocks);
  }
  return bytes;
}

template <class Format, int kPanels>
void MultiplyGroup(const Product& product, std::int64_t panel, const TokenTiles& tiles, Group group,
                   const PanelWorkspace& workspace) {
  constexpr std::int64_t kRows = kPanels * kPanelRows;
  const std::int64_t inputs = product.x.inputs;
  const std::int64_t panel_bytes = PanelBytes(product.dtype, inputs);
  const std::int64_t first = tiles.Begin(group.begin);
  const bool are_whole = (panel + kPanels) * kPanelRows <= product.outputs;
  const auto* at = reinterpret_cast<const std::uint8_t*>(product.panels) + panel * panel_bytes;
  // One tile has nothing between the prefetches; they are between the steps of unpacking then.
  const Prefetching prefetching =
      group.end - group.begin == 1 ? Prefetching::kUnpacking : Prefetching::kTiles;
  Span<kPanels> span;
  for (span.first = 0; span.first < Chunks(inputs); span.first += kSpanChunks) {
    const std::int64_t bytes =
        UnpackSpan<Format, kPanels>(at, inputs, prefetching, workspace.chunks, span);
    const bool is_last = span.first + span.chunks == Chunks(inputs);
    for (std::int64_t tile = group.begin; tile < group.end; ++tile) {
      for (std::int64_t p = 0; p < kPanels && prefetching == Prefetching::kTiles; ++p) {
        PrefetchPart(at + p * panel_bytes, bytes, tile - group.begin, group.end - group.begin);
      }
      const std::int64_t begin = tiles.Begin(tile);
      float* const sums = workspace.y + (begin - first) * kRows;
      TileSums y{span.first == 0 ? nullptr : sums, kRows, sums, kRows};
      if (is_last && are_whole) {
        y.to = product.y + begin * product.outputs + panel * kPanelRows;
        y.to_stride = product.outputs;
        PrefetchResults<kPanels>(y.to, y.to_stride, tiles.Size(tile));
      }
      MultiplyTileOf<Format::kProduct, kTileTokens, kMinTileTokens>(tiles.Size(tile), span,
                                                                    product.x, begin, y);
    }
    at += bytes;
  }
  if (!are_whole) {
    StoreLastRows<kPanels>(product, panel, first, tiles.Begin(group.end) - first, workspace.y);
  }
}

template <class Format>
void MultiplyWith(const Product& product, std::int64_t begin, std::int64_t end,
                  const PanelWorkspace& workspace) {
  if (product.x.tokens == 1) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      MultiplyOneToken<Format>(product, panel);
    }
    return;
  }
  const TokenTiles tiles(product.x.tokens, MostTileTokens(product.x.tokens));
  if constexpr (kFewTokens > 1) {
    if (product.x.tokens <= kFewTokens) {
      return MultiplyFewTokens<Format>(product, begin, end, tiles, workspace.y);
    }
  }
  const std::int64_t step = TilesPerGroup(product.x.inputs);
  for (std::int64_t tile = 0; tile < tiles.count(); tile += step) {
    const Group group{tile, std::min(tile + step, tiles.count())};
    std::int64_t panel = begin;
    for (; panel + kTilePanels <= end; panel += kTilePanels) {
      MultiplyGroup<Format, kTilePanels>(product, panel, tiles, group, workspace);
    }
    for (; panel < end; ++panel) {
      MultiplyGroup<Format, 1>(product, panel, tiles, group, workspace);
    }
  }
}

// A format with another way to multiply bytes.
template <class Format, ByteProducts kProducts>
struct With : Format {
  static constexpr ProductKind kProduct = {
      Format::kProduct.chain,
      Format::kProduct.bias,
      {Format::kProduct.bytes.max, kProducts == ByteProducts::kFours,
       kProducts == ByteProducts::kMatrix}};
};

template <DType kType>
void MultiplyFormat(const Product& product, std::int64_t begin, std::int64_t end,
                    const PanelWorkspace& workspace) {
#if HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64
  if (ByteProductsInUse() == ByteProducts::kFours) {
    return MultiplyWith<With<Format<kType>, ByteProducts::kFours>>(product, begin, end, workspace);
  }
#endif
#if HWY_ARCH_ARM_A64
  if (ByteProductsInUse() == ByteProducts::kMatrix) {
    return MultiplyWith<With<Format<kType>, ByteProducts::kMatrix>>(product, begin, end, workspace);
  }
#endif
  MultiplyWith<Format<kType>>(product, begin, end, workspace);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
