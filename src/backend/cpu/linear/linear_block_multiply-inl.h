// The product of block-quantised weights with a call's activations, for every target.
//
// The work is cut three ways, and each cut keeps data in a cache that fits it:
//
//   tile    up to kTileTokens tokens × kTilePanels panels of 16 rows: their sums stay in registers
//   chunk   256 inputs of a panel: unpacked once to bytes and f32 scales, in the first-level cache,
//           then multiplied with every tile of the group
//   group   96 to 512 tokens: their quantised inputs and sums stay in the second-level cache, so
//           that a prefill reads the weights once per group
//
// A single token skips the tiles: its panels are multiplied one by one, and unpacked bytes stay in
// registers.
//
// Every function performs the chain of its Format (docs/design/exactness.md): a tile only says how
// many outputs advance together.
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_MULTIPLY_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_MULTIPLY_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_MULTIPLY_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/common/token_tiles.h"
#include "backend/cpu/cpu_target.h"
#include "backend/cpu/linear/linear_block_coded-inl.h"
#include "backend/cpu/linear/linear_block_format-inl.h"
#include "backend/cpu/linear/linear_block_unpack-inl.h"
#include "backend/cpu/simd/simd-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The inputs of a tile of tokens in one chunk: its part of QuantizedX.
struct TileInput {
  const Value* values;
  const float* scales;
  const std::int32_t* corrections;
  const float* sums;
};

template <ProductKind kKind>
HWY_INLINE TileInput InputOf(const QuantizedX& x, std::int64_t chunk, std::int64_t tile_begin) {
  const std::int64_t blocks =
      chunk * kChunkBlocks * x.tokens + tile_begin * BlocksOf(x.inputs, chunk);
  const std::int64_t digits = IsForBytes(x.kind) ? DigitsOf(kKind.bytes) : 1;
  const Value* const values = reinterpret_cast<const Value*>(x.values) + blocks * digits * kBlock;
  if constexpr (kKind.chain == Chain::kPer16) {
    return {values, x.scales + 2 * blocks, x.corrections + 2 * blocks, nullptr};
  }
  if constexpr (!IsPer256(kKind.chain)) {
    return {values, x.scales + blocks, x.corrections + blocks, x.sums + blocks};
  }
  return {values, x.scales + chunk * x.tokens + tile_begin, x.corrections + 2 * blocks,
          x.sums + blocks};
}

template <int kTokens, int kPanels>
using Sums = VF[kPanels][kTokens][kPanelRegs];

// What a minimum is multiplied with: the sum of the inputs that share it, for token t of a tile of
// `tokens`. Sums of 16 inputs are -128 times that, and their minima are divided by -128: powers of two
// change no bits.
template <Chain kChain>
HWY_INLINE VF SumOf(const TileInput& x, std::int64_t i, int t, int tokens) {
  if constexpr (kChain == Chain::kPer256Of16WithMinimum) {
    return hn::ConvertTo(DF(), hn::Set(DI(), x.corrections[i * tokens + t]));
  } else {
    return hn::Set(DF(), x.sums[i * tokens + t]);
  }
}

// What sums of integers begin at, beside what cancels the bias. It saves a conversion where a start is loaded
// anyway and several tokens share SumScales for 32 inputs.
constexpr std::int32_t SumStartOf(ProductKind kind) {
  const bool per_32 = kind.chain == Chain::kPer32 || kind.chain == Chain::kPer32WithMinimum;
  return per_32 && kind.bias != 0 ? kSumStart : 0;
}

constexpr Init InitOf(ProductKind kind) {
  return kind.bias == 0 ? Init::kZero : Init::kCorrections;
}

// What the dot products of the inputs that share scale i start at, for token t of a tile of `tokens`:
// SumStartOf, then -bias × the sum of the inputs, which cancels the bias.
template <ProductKind kKind>
HWY_INLINE std::int32_t StartOf(const TileInput& x, std::int64_t i, int t, int tokens) {
  constexpr std::int32_t kStart = SumStartOf(kKind);
  if constexpr (kKind.bias == 0 || FlipsSigns(kKind.bytes)) return kStart;
  std::int32_t start = x.corrections[i * tokens + t];
  if constexpr (kKind.chain == Chain::kPer256) {
    start = x.corrections[2 * i * tokens + t] + x.corrections[(2 * i + 1) * tokens + t];
  }
  if constexpr (kKind.bias == 128) return start;
  return ((start - kStart) >> 7) * kKind.bias + kStart;
}

// Adds the minima of a block: sum[panel][token] += minima of the rows × the sum of the token's
// inputs.
template <Chain kChain, int kTokens, int kPanels>
HWY_INLINE void AddMinima(const Unpacked (&w)[kPanels], std::int64_t block, const TileInput& x,
                          Sums<kTokens, kPanels>& sum) {
  const DF d;
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const VF minimum = hn::Load(d, w[p].minima + block * kPanelRows + r * kLanes);
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const VF inputs = SumOf<kChain>(x, block, t, kTokens);
        sum[p][t][r] = hn::MulAdd(minimum, inputs, sum[p][t][r]);
      }
    }
  }
}

// Computes the exact dot products of the i-th inputs of a chunk that share a scale with all rows.
template <ProductKind kKind, int kTokens, int kPanels>
HWY_INLINE void Dot(const Unpacked (&w)[kPanels], std::int64_t i, const TileInput& x,
                    VI (&dots)[kPanels][kTokens][kPanelRegs]) {
  constexpr int kGroups = GroupsOf(kKind.chain);
  const std::int64_t from = i * 4 * kGroups;
  constexpr Init kInit = InitOf(kKind);
  std::int32_t starts[kTokens];
  const std::int32_t* init = x.corrections + i * kTokens;
  constexpr bool kAreCorrections =
      kKind.bias == 128 && kKind.chain != Chain::kPer256 && !FlipsSigns(kKind.bytes);
  if constexpr (kInit != Init::kZero && !kAreCorrections) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) starts[t] = StartOf<kKind>(x, i, t, kTokens);
    init = starts;
  }
  const std::uint8_t* quants[kPanels];
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) quants[p] = w[p].quants + from * kPanelRows;
  const std::int64_t block = from / kBlock * kTokens * DigitsOf(kKind.bytes);
  DotGroups<kKind.bytes, kInit, kGroups, kTokens, kPanels>(
      quants, x.values + block * kBlock + from % kBlock, init, dots);
}

// Adds the i-th inputs that share a scale, for the chains whose input scales are shared alike.
template <ProductKind kKind, int kTokens, int kPanels>
HWY_INLINE void AddBlock(const Unpacked (&w)[kPanels], const TileInput& x, std::int64_t i,
                         Sums<kTokens, kPanels>& sum) {
  const DF d;
  VI dots[kPanels][kTokens][kPanelRegs];
  Dot<kKind>(w, i, x, dots);
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const SumScales scales(hn::Load(d, w[p].scales + i * kPanelRows + r * kLanes));
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const VF scaled = scales.template Times<SumStartOf(kKind)>(dots[p][t][r]);
        sum[p][t][r] = hn::MulAdd(scaled, hn::Set(d, x.scales[i * kTokens + t]), sum[p][t][r]);
      }
    }
  }
  if constexpr (kKind.chain == Chain::kPer32WithMinimum) AddMinima<kKind.chain>(w, i, x, sum);
}

// The same for the chains with an input scale per 256.
template <ProductKind kKind, int kTokens, int kPanels>
HWY_INLINE void AddSubBlock(const Unpacked (&w)[kPanels], const TileInput& x, std::int64_t i,
                            Sums<kTokens, kPanels>& sum) {
  const DF d;
  VI dots[kPanels][kTokens][kPanelRegs];
  Dot<kKind>(w, i, x, dots);
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const VF scale = hn::Load(d, w[p].scales + i * kPanelRows + r * kLanes);
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        sum[p][t][r] = hn::MulAdd(hn::ConvertTo(d, dots[p][t][r]), scale, sum[p][t][r]);
      }
    }
  }
  if constexpr (HasMinima(kKind.chain)) AddMinima<kKind.chain>(w, i, x, sum);
}

template <int kTokens, int kPanels>
HWY_INLINE void LoadSums(const float* y, Sums<kTokens, kPanels>& sum) {
  for (int p = 0; p < kPanels; ++p) {
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kPanelRegs; ++r) {
        sum[p][t][r] = hn::Load(DF(), y + (p * kTokens + t) * kPanelRows + r * kLanes);
      }
    }
  }
}

// Adds one chunk to y [panel][token][16 rows].
template <ProductKind kKind, int kTokens, int kPanels>
void MultiplyTile(const Unpacked (&w)[kPanels], const TileInput& x, std::int64_t blocks, float* y) {
  constexpr bool kPer256 = IsPer256(kKind.chain);
  constexpr std::int64_t kParts = PartsOf(kKind.chain);
  const DF d;
  Sums<kTokens, kPanels> sum;
  if constexpr (kPer256) {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        KVCACHE_UNROLL
        for (int r = 0; r < kPanelRegs; ++r) sum[p][t][r] = hn::Zero(d);
      }
    }
    for (std::int64_t i = 0; i < kChunkBlocks * kParts; ++i) AddSubBlock<kKind>(w, x, i, sum);
  } else {
    LoadSums(y, sum);
    for (std::int64_t i = 0; i < blocks * kParts; ++i) AddBlock<kKind>(w, x, i, sum);
  }
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        float* const at = y + (p * kTokens + t) * kPanelRows + r * kLanes;
        VF value = sum[p][t][r];
        if constexpr (kPer256) value = hn::MulAdd(value, hn::Set(d, x.scales[t]), hn::Load(d, at));
        hn::Store(value, d, at);
      }
    }
  }
}

// Calls MultiplyTile with the tile's size as a compile-time constant.
template <ProductKind kKind, int kTokens, int kPanels>
HWY_INLINE void MultiplyTileOf(const Unpacked (&w)[kPanels], const TileInput& x,
                               std::int64_t blocks, std::int64_t tokens, float* y) {
  if (tokens == kTokens) {
    MultiplyTile<kKind, kTokens, kPanels>(w, x, blocks, y);
  } else if constexpr (kTokens > 1) {
    MultiplyTileOf<kKind, kTokens - 1, kPanels>(w, x, blocks, tokens, y);
  }
}

// ---- Tiles, chunks and panels

// The tiles that are multiplied with a chunk of weights while it is unpacked. Their inputs and sums
// should stay in the second-level cache.
struct Group {
  std::int64_t begin;  // tiles
  std::int64_t end;
};

inline std::int64_t TilesPerGroup(std::int64_t inputs) {
  return std::clamp(kGroupValues / inputs, kMinGroupTokens, kMaxGroupTokens) / kTileTokens;
}

// Writes the rows of a panel that exist.
HWY_INLINE void StoreRows(const float* sums, std::int64_t rows, float* y) {
  std::copy_n(sums, std::min(rows, kPanelRows), y);
}

template <int kPanels>
void StoreTiles(const Product& product, std::int64_t panel, const TokenTiles& tiles, Group group,
                const float* y) {
  for (std::int64_t tile = group.begin; tile < group.end; ++tile) {
    const std::int64_t size = tiles.Size(tile);
    for (std::int64_t p = 0; p < kPanels; ++p) {
      const std::int64_t row = (panel + p) * kPanelRows;
      for (std::int64_t t = 0; t < size; ++t) {
        StoreRows(y + (p * size + t) * kPanelRows, product.outputs - row,
                  product.y + (tiles.Begin(tile) + t) * product.outputs + row);
      }
    }
    y += size * kPanels * kPanelRows;
  }
}

// Prefetches part `part` of `parts` of as many bytes as a chunk has, kPrefetchBytes behind it. Each
// tile prefetches a part: all lines of a chunk at once would wait for each other.
HWY_INLINE void PrefetchPart(const std::uint8_t* chunk, std::int64_t bytes, std::int64_t part,
                             std::int64_t parts) {
  const std::int64_t part_bytes = (bytes / kLine + parts - 1) / parts * kLine;
  const std::int64_t end = std::min((part + 1) * part_bytes, bytes);
  for (std::int64_t i = part * part_bytes; i < end; i += kLine) {
    hwy::Prefetch(chunk + kPrefetchBytes + i);
  }
}

template <class Format, int kPanels>
void MultiplyGroup(const Product& product, std::int64_t panel, const TokenTiles& tiles, Group group,
                   const PanelWorkspace& workspace) {
  const std::int64_t inputs = product.x.inputs;
  const std::int64_t panel_bytes = PanelBytes(product.dtype, inputs);
  const std::int64_t first = tiles.Begin(group.begin);
  const std::int64_t tokens = tiles.Begin(group.end) - first;
  std::memset(workspace.y, 0,
              static_cast<std::size_t>(tokens * kPanels * kPanelRows) * sizeof(float));
  const auto* chunk_at =
      reinterpret_cast<const std::uint8_t*>(product.panels) + panel * panel_bytes;
  // One tile has nothing between the prefetches; they are between the steps of unpacking then.
  const Prefetching prefetching =
      group.end - group.begin == 1 ? Prefetching::kUnpacking : Prefetching::kTiles;
  for (std::int64_t chunk = 0; chunk < Chunks(inputs); ++chunk) {
    const std::int64_t blocks = BlocksOf(inputs, chunk);
    Unpacked w[kPanels];
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      w[p] =
          UnpackChunk<Format>(chunk_at + p * panel_bytes, blocks, prefetching, workspace.chunks[p]);
    }
    for (std::int64_t tile = group.begin; tile < group.end; ++tile) {
      const std::int64_t begin = tiles.Begin(tile);
      for (std::int64_t p = 0; p < kPanels && prefetching == Prefetching::kTiles; ++p) {
        PrefetchPart(chunk_at + p * panel_bytes, ChunkBytes(product.dtype, blocks),
                     tile - group.begin, group.end - group.begin);
      }
      MultiplyTileOf<Format::kProduct, kTileTokens>(
          w, InputOf<Format::kProduct>(product.x, chunk, begin), blocks, tiles.Size(tile),
          workspace.y + (begin - first) * kPanels * kPanelRows);
    }
    chunk_at += ChunkBytes(product.dtype, blocks);
  }
  StoreTiles<kPanels>(product, panel, tiles, group, workspace.y);
}

// ---- One token

using PanelSums = VF[kPanelRegs];

// Whether a product of one token multiplies its sums of 16 bits by the rows' integer scales while it widens them:
// float(sum × scale) · d is the exact product that float(sum) · (d · scale) is. A start is added to the sums of 16
// bits then, and fits into them.
template <class Format>
inline constexpr bool kScalesSums = [] {
  constexpr ProductKind kKind = Format::kProduct;
  constexpr int kGroups = GroupsOf(kKind.chain);
  static_assert(!IsPer256(kKind.chain) || SumStartOf(kKind) == 0);
  constexpr bool kFits = kKind.bias == 0 || (kGroups == 4 && kKind.bias <= 16);
  constexpr bool kHasSmall = requires(const typename Format::Head& head) {
    head.SmallScales(0);
  };
  return kHasSmall && kFits && CanScaleSums(kKind.bytes, kGroups);
}();

// Adds the kPart-th inputs that share a scale, of the 32 inputs `b` of a chunk, which `lines` hold. The
// bytes stay in registers.
template <class Format, int kPart>
HWY_INLINE void AddLines(const std::uint8_t* lines, const typename Format::Head& head,
                         const TileInput& x, std::int64_t b, PanelSums& sum) {
  constexpr ProductKind kKind = Format::kProduct;
  constexpr int kGroups = GroupsOf(kKind.chain);
  const std::int64_t i = b * PartsOf(kKind.chain) + kPart;
  const DF d;
  constexpr bool kScaled = kScalesSums<Format>;
  constexpr bool kPairsOfBits = requires {
    requires Format::kIsPairsOfBits;
  };
  OneTokenDots<OneTokenKind{kKind.bytes, InitOf(kKind), kGroups, kPairsOfBits, kScaled}> dots(
      x.values + i * 4 * kGroups * DigitsOf(kKind.bytes), StartOf<kKind>(x, i, 0, 1));
  if constexpr (kScaled) {
    dots.SetScales(head.SmallScales(i));
    Format::template Unpack<kPart>(lines, dots);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      sum[r] = hn::MulAdd(hn::ConvertTo(d, dots.Dot(r)), head.Unit().r[r], sum[r]);
    }
  } else {
    Format::template Unpack<kPart>(lines, dots);
    const RowFactors w_scale = head.Scales(i);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      if constexpr (!IsPer256(kKind.chain)) {
        const VF scaled = SumScales(w_scale.r[r]).template Times<SumStartOf(kKind)>(dots.Dot(r));
        sum[r] = hn::MulAdd(scaled, hn::Set(d, x.scales[i]), sum[r]);
      } else {
        sum[r] = hn::MulAdd(hn::ConvertTo(d, dots.Dot(r)), w_scale.r[r], sum[r]);
      }
    }
  }
  if constexpr (HasMinima(kKind.chain)) {
    const RowFactors minima = head.Minima(i);
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      sum[r] = hn::MulAdd(minima.r[r], SumOf<kKind.chain>(x, i, 0, 1), sum[r]);
    }
  }
}

// Multiplies a single token with a panel. Memory accesses, unpacking and products overlap.
template <class Format>
void MultiplyOneToken(const Product& product, std::int64_t panel) {
  constexpr Chain kChain = Format::kProduct.chain;
  constexpr std::int64_t kBytes = LayoutOf(Format::kType).body_bytes;
  const std::int64_t inputs = product.x.inputs;
  const auto* chunk_at = reinterpret_cast<const std::uint8_t*>(product.panels) +
                         panel * PanelBytes(product.dtype, inputs);
  const DF d;
  PanelSums y;
  KVCACHE_UNROLL
  for (int r = 0; r < kPanelRegs; ++r) y[r] = hn::Zero(d);
  for (std::int64_t chunk = 0; chunk < Chunks(inputs); ++chunk) {
    const std::int64_t blocks = BlocksOf(inputs, chunk);
    const TileInput x = InputOf<Format::kProduct>(product.x, chunk, 0);
    PrefetchAhead<HeadBytes(Format::kType, kChunkBlocks)>(chunk_at);
    const typename Format::Head head(chunk_at);
    const std::uint8_t* const lines = chunk_at + HeadBytes(Format::kType, blocks);
    PanelSums sum;
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) sum[r] = IsPer256(kChain) ? hn::Zero(d) : y[r];
    for (std::int64_t b = 0; b < blocks; ++b) {
      PrefetchAhead<kBytes>(lines + b * kBytes);
      AddLines<Format, 0>(lines + b * kBytes, head, x, b, sum);
      if constexpr (PartsOf(kChain) == 2) AddLines<Format, 1>(lines + b * kBytes, head, x, b, sum);
    }
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      y[r] = IsPer256(kChain) ? hn::MulAdd(sum[r], hn::Set(d, x.scales[0]), y[r]) : sum[r];
    }
    chunk_at += ChunkBytes(Format::kType, blocks);
  }
  HWY_ALIGN float rows[kPanelRows];
  for (int r = 0; r < kPanelRegs; ++r) hn::Store(y[r], d, rows + r * kLanes);
  StoreRows(rows, product.outputs - panel * kPanelRows, product.y + panel * kPanelRows);
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
  const TokenTiles tiles(product.x.tokens, kTileTokens);
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
