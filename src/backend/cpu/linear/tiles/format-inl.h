// The product of one weight type with matrix tiles, declared for AVX3_DL. The definition is multiply-inl.h; it is
// instantiated in per_32.cc and its neighbours.
#if defined(KVCACHE_BACKEND_CPU_TILES_FORMAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_TILES_FORMAT_INL_H_
#undef KVCACHE_BACKEND_CPU_TILES_FORMAT_INL_H_
#else
#define KVCACHE_BACKEND_CPU_TILES_FORMAT_INL_H_
#endif

#include "backend/cpu/common/tile_registers-inl.h"
#include "backend/cpu/linear/block/format-inl.h"
#include "backend/cpu/linear/tiles/tile_tokens.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

// The scales that the tiles' products of one step have: a step stores its sums before the next one folds them.
inline constexpr std::int64_t kStepScales = 4;

// A thread's memory while it multiplies with matrix tiles, behind that of PanelWorkspace.
struct TileWorkspace {
  // Sums of two steps: those that the tiles compute, and those that are folded.
  // [step][scale][panel][token][16 rows]
  alignas(64) std::int32_t sums[2][kStepScales][kTilePanels][kMatrixTileTokens * kPanelRows];
  // Chains per 256: the sums of a tile between the steps of a chunk. [panel][token][16 rows]
  alignas(64) float partial[kTilePanels * kMatrixTileTokens * kPanelRows];
};

// MultiplyPanels for weights of type kType and at least kMinMatrixTokens tokens.
template <DType kType>
void MultiplyWithTiles(const Product& product, std::int64_t begin, std::int64_t end,
                       const PanelWorkspace& workspace, TileWorkspace& tile_workspace);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL

#endif  // per-target include guard
