// The product of a tile of tokens with unpacked weights, for every target: sums stay in registers.
//
// Every function performs the chain of its ProductKind (docs/design/exactness.md): a tile only says how
// many outputs advance together.
//
// Compiled once per target.
#if defined(KVCACHE_BACKEND_CPU_LINEAR_BLOCK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_TILE_INL_H_
#undef KVCACHE_BACKEND_CPU_LINEAR_BLOCK_TILE_INL_H_
#else
#define KVCACHE_BACKEND_CPU_LINEAR_BLOCK_TILE_INL_H_
#endif

#include <algorithm>

#include "backend/cpu/common/block_dot-inl.h"
#include "backend/cpu/common/token_tiles.h"
#include "backend/cpu/linear/block/format-inl.h"
#include "backend/cpu/linear/block/unpack-inl.h"
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

// A tile's sums: rows of 16 at token × stride + 16 × panel.
struct TileSums {
  const float* from;  // aligned; null: zeros
  std::int64_t from_stride;
  float* to;
  std::int64_t to_stride;
};

// Neighbouring chunks of some panels.
template <int kPanels>
struct Span {
  std::int64_t first;  // chunk
  int chunks;          // at most kSpanChunks
  Unpacked w[kSpanChunks][kPanels];
};

template <int kTokens, int kPanels>
HWY_INLINE void LoadSums(const TileSums& y, Sums<kTokens, kPanels>& sum) {
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        sum[p][t][r] =
            y.from == nullptr
                ? hn::Zero(DF())
                : hn::Load(DF(), y.from + t * y.from_stride + p * kPanelRows + r * kLanes);
      }
    }
  }
}

template <int kTokens, int kPanels>
HWY_INLINE void StoreSums(const Sums<kTokens, kPanels>& sum, const TileSums& y) {
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        hn::StoreU(sum[p][t][r], DF(), y.to + t * y.to_stride + p * kPanelRows + r * kLanes);
      }
    }
  }
}

// y = fma(sum, scale of the inputs, y), for the chains with an input scale per 256.
template <int kTokens, int kPanels>
HWY_INLINE void AddChunk(const Sums<kTokens, kPanels>& sum, const TileInput& x, const TileSums& y) {
  const DF d;
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const VF scale = hn::Set(d, x.scales[t]);
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        const std::int64_t row = p * kPanelRows + r * kLanes;
        const VF before =
            y.from == nullptr ? hn::Zero(d) : hn::LoadU(d, y.from + t * y.from_stride + row);
        hn::StoreU(hn::MulAdd(sum[p][t][r], scale, before), d, y.to + t * y.to_stride + row);
      }
    }
  }
}

// Adds the products of a span to the sums of the tile that begins with token `begin`.
template <ProductKind kKind, int kTokens, int kPanels>
void MultiplyTile(const Span<kPanels>& span, const QuantizedX& x, std::int64_t begin, TileSums y) {
  constexpr std::int64_t kParts = PartsOf(kKind.chain);
  Sums<kTokens, kPanels> sum;
  if constexpr (IsPer256(kKind.chain)) {
    for (int c = 0; c < span.chunks; ++c) {
      const TileInput inputs = InputOf<kKind>(x, span.first + c, begin);
      LoadSums(TileSums{}, sum);
      for (std::int64_t i = 0; i < kChunkBlocks * kParts; ++i) {
        AddSubBlock<kKind>(span.w[c], inputs, i, sum);
      }
      AddChunk(sum, inputs, y);
      y.from = y.to;
      y.from_stride = y.to_stride;
    }
  } else {
    LoadSums(y, sum);
    for (int c = 0; c < span.chunks; ++c) {
      const TileInput inputs = InputOf<kKind>(x, span.first + c, begin);
      const std::int64_t parts = BlocksOf(x.inputs, span.first + c) * kParts;
      for (std::int64_t i = 0; i < parts; ++i) AddBlock<kKind>(span.w[c], inputs, i, sum);
    }
    StoreSums(sum, y);
  }
}

// Loads the lines of a tile's results before the tile is computed: its stores would wait for them.
template <int kPanels>
HWY_INLINE void PrefetchResults(float* y, std::int64_t stride, std::int64_t tokens) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      float* const line = y + t * stride + p * kPanelRows;
#if HWY_ARCH_X86
      asm volatile("prefetchw %0" : : "m"(*line));
#else
      __builtin_prefetch(line, 1);
#endif
    }
  }
}

// The smallest tile that more than kFewTokens tokens are cut into.
constexpr int SmallestTile() {
  std::int64_t smallest = kTileTokens;
  for (std::int64_t tokens = kFewTokens + 1; tokens <= 8 * kTileTokens + kFewTokens; ++tokens) {
    const TokenTiles tiles(tokens, MostTileTokens(tokens));
    smallest = std::min(smallest, tiles.Size(tiles.count() - 1));
  }
  return static_cast<int>(smallest);
}
inline constexpr int kMinTileTokens = SmallestTile();

// Calls MultiplyTile with the tile's size as a compile-time constant.
template <ProductKind kKind, int kTokens, int kMinTokens, int kPanels>
HWY_INLINE void MultiplyTileOf(std::int64_t tokens, const Span<kPanels>& span, const QuantizedX& x,
                               std::int64_t begin, const TileSums& y) {
  if (tokens == kTokens || kTokens == kMinTokens) {
    MultiplyTile<kKind, kTokens, kPanels>(span, x, begin, y);
  } else {
    MultiplyTileOf<kKind, std::max(kTokens - 1, kMinTokens), kMinTokens, kPanels>(tokens, span, x,
                                                                                  begin, y);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
