#include "backend/cpu/linear_q8.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/targets.h"
#include "backend/cpu/token_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear_q8.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// After it, so that they compile once per target.
#include "backend/cpu/linear_q8_dot-inl.h"
#include "backend/cpu/simd-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::q8 {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using cpu::HWY_NAMESPACE::DF;
using cpu::HWY_NAMESPACE::kLanes;
using cpu::HWY_NAMESPACE::LoadF16;
using cpu::HWY_NAMESPACE::VF;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

inline constexpr int kBlockRegs = static_cast<int>(kBlock) / kLanes;
inline constexpr int kPanelRegs = static_cast<int>(kPanelRows) / kLanes;

// ---- Activations

HWY_INLINE float MaxAbs(const float* x) {
  const DF d;
  VF most = hn::Zero(d);
  for (int i = 0; i < kBlockRegs; ++i) {
    most = hn::Max(most, hn::Abs(hn::LoadU(d, x + i * kLanes)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// Returns the sum of the block's values.
HWY_INLINE std::int32_t QuantiseBlock(const float* x, float inverse_scale, Value* values) {
  const DF d;
  const hn::Rebind<Value, DF> d_value;
  VI sum = hn::Zero(DI());
  for (int i = 0; i < kBlockRegs; ++i) {
    const VF scaled = hn::Mul(hn::LoadU(d, x + i * kLanes), hn::Set(d, inverse_scale));
    const VI rounded = hn::NearestInt(scaled);
    sum = hn::Add(sum, rounded);
    hn::StoreU(hn::DemoteTo(d_value, rounded), d_value, values + i * kLanes);
  }
  return hn::GetLane(hn::SumOfLanes(DI(), sum));
}

void QuantiseToken(const float* x, std::int64_t token, const QuantisedX& out) {
  const std::int64_t blocks = out.inputs / kBlock;
  const TokenTiles tiles(out.tokens, kTileTokens);
  const std::int64_t tile = tiles.TileOf(token);
  const std::int64_t begin = tiles.Begin(tile);
  const std::int64_t size = tiles.Size(tile);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const float scale = MaxAbs(x + b * kBlock) / 127.0f;
    const float inverse_scale = scale > 0.0f ? 1.0f / scale : 0.0f;
    const std::int64_t place = begin * blocks + b * size + (token - begin);
    out.scales[place] = scale;
    Value* const values = reinterpret_cast<Value*>(out.values) + place * kBlock;
    out.corrections[place] = -128 * QuantiseBlock(x + b * kBlock, inverse_scale, values);
  }
}

// ---- Products

// What a tile reads: panels side by side, and the tile's part of QuantisedX.
struct TileInput {
  const std::byte* panels;
  std::int64_t panel_bytes;
  const Value* values;
  const float* scales;
  const std::int32_t* corrections;
};

// The first tile of tokens to use a panel finds it in memory, the others in the cache.
enum class Pass { kFirst, kLater };

// The hardware loses its step at page ends and between panels; far enough ahead for memory,
// near enough to still be in the first cache when its turn comes.
constexpr std::int64_t kPrefetchBytes = 2048;

template <int kPanels>
HWY_INLINE void PrefetchAhead(const std::byte* const (&quants)[kPanels]) {
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int i = 0; i < kBlockQuantBytes / 64; ++i) {
      hwy::Prefetch(quants[p] + kPrefetchBytes + i * 64);
    }
  }
}

// One block: exact dot products, then one step of each chain.
template <int kTokens, int kPanels, Pass kPass>
HWY_INLINE void AddBlock(const TileInput& in, std::int64_t block,
                         VF (&sum)[kPanels][kTokens][kPanelRegs]) {
  const DF d;
  const std::byte* quants[kPanels];
  const std::byte* scales[kPanels];
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    const std::byte* const pair = in.panels + p * in.panel_bytes + block / 2 * kPairBytes;
    scales[p] = pair + block % 2 * (kPairScaleBytes / 2);
    quants[p] = pair + kPairScaleBytes + block % 2 * kBlockQuantBytes;
  }
  if constexpr (kPass == Pass::kFirst) PrefetchAhead(quants);
  VI dots[kPanels][kTokens][kPanelRegs];
  DotBlock<kTokens, kPanels>(quants, in.values + block * kTokens * kBlock,
                             in.corrections + block * kTokens, dots);
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      const VF w_scale =
          LoadF16::Load(d, reinterpret_cast<const hwy::float16_t*>(scales[p]) + r * kLanes);
      KVCACHE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const VF scale = hn::Mul(w_scale, hn::Set(d, in.scales[block * kTokens + t]));
        sum[p][t][r] = hn::MulAdd(hn::ConvertTo(d, dots[p][t][r]), scale, sum[p][t][r]);
      }
    }
  }
}

// Writes the rows of a panel that exist.
HWY_INLINE void StoreRows(const VF (&sum)[kPanelRegs], std::int64_t rows, float* y) {
  const DF d;
  if (rows >= kPanelRows) {
    for (int r = 0; r < kPanelRegs; ++r) hn::StoreU(sum[r], d, y + r * kLanes);
    return;
  }
  HWY_ALIGN float all[kPanelRows];
  for (int r = 0; r < kPanelRegs; ++r) hn::Store(sum[r], d, all + r * kLanes);
  std::copy_n(all, rows, y);
}

template <int kTokens, int kPanels, Pass kPass>
void MultiplyTile(const Product& product, std::int64_t panel, std::int64_t token) {
  const std::int64_t inputs = product.x.inputs;
  const std::int64_t blocks = inputs / kBlock;
  const TileInput in{product.panels + panel * PanelBytes(inputs), PanelBytes(inputs),
                     reinterpret_cast<const Value*>(product.x.values) + token * inputs,
                     product.x.scales + token * blocks, product.x.corrections + token * blocks};
  VF sum[kPanels][kTokens][kPanelRegs];
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) sum[p][t][r] = hn::Zero(DF());
    }
  }
  for (std::int64_t block = 0; block < blocks; ++block) {
    AddBlock<kTokens, kPanels, kPass>(in, block, sum);
  }
  KVCACHE_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    const std::int64_t row = (panel + p) * kPanelRows;
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      StoreRows(sum[p][t], product.outputs - row, product.y + (token + t) * product.outputs + row);
    }
  }
}

// The tile's size as a compile-time constant.
template <int kTokens, int kPanels, Pass kPass>
void MultiplyTileOf(const Product& product, std::int64_t panel, std::int64_t token,
                    std::int64_t tokens) {
  if (tokens == kTokens) {
    MultiplyTile<kTokens, kPanels, kPass>(product, panel, token);
  } else if constexpr (kTokens > 1) {
    MultiplyTileOf<kTokens - 1, kPanels, kPass>(product, panel, token, tokens);
  }
}

template <int kPanels>
void MultiplyAllTokens(const Product& product, std::int64_t panel) {
  const TokenTiles tiles(product.x.tokens, kTileTokens);
  MultiplyTileOf<kTileTokens, kPanels, Pass::kFirst>(product, panel, 0, tiles.Size(0));
  for (std::int64_t tile = 1; tile < tiles.count(); ++tile) {
    MultiplyTileOf<kTileTokens, kPanels, Pass::kLater>(product, panel, tiles.Begin(tile),
                                                       tiles.Size(tile));
  }
}

void MultiplyPanels(const Product& product, std::int64_t begin, std::int64_t end) {
  std::int64_t panel = begin;
  for (; panel + kTilePanels <= end; panel += kTilePanels) {
    MultiplyAllTokens<kTilePanels>(product, panel);
  }
  for (; panel < end; ++panel) MultiplyAllTokens<1>(product, panel);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::q8
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu::q8 {

HWY_EXPORT(QuantiseToken);
HWY_EXPORT(MultiplyPanels);

void QuantiseToken(const float* x, std::int64_t token, const QuantisedX& out) {
  HWY_DYNAMIC_DISPATCH(QuantiseToken)(x, token, out);
}

void MultiplyPanels(const Product& product, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanels)(product, begin, end);
}

}  // namespace kvcache::cpu::q8
#endif  // HWY_ONCE
