// Chooses the instruction set and the weight type of a product; the kernels are
// linear_block_multiply-inl.h and tiles/multiply-inl.h.
#include "backend/cpu/linear/block/linear_block.h"

#include <algorithm>

#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/block/linear_block.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/block/format-inl.h"
#include "backend/cpu/linear/tiles/format-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

// Calls multiply.operator()<the type whose kernels the weights have>().
template <class Multiply>
HWY_INLINE void WithType(DType dtype, const Multiply& multiply) {
  switch (dtype) {
    case DType::kQ4_0: return multiply.template operator()<DType::kQ4_0>();
    case DType::kQ4_1: return multiply.template operator()<DType::kQ4_1>();
    case DType::kQ5_0: return multiply.template operator()<DType::kQ5_0>();
    case DType::kQ5_1: return multiply.template operator()<DType::kQ5_1>();
    case DType::kMXFP4: return multiply.template operator()<DType::kMXFP4>();
    case DType::kQ4_K: return multiply.template operator()<DType::kQ4_K>();
    case DType::kQ5_K: return multiply.template operator()<DType::kQ5_K>();
    case DType::kQ6_K: return multiply.template operator()<DType::kQ6_K>();
    case DType::kQ2_K: return multiply.template operator()<DType::kQ2_K>();
    case DType::kQ3_K: return multiply.template operator()<DType::kQ3_K>();
    case DType::kIQ4_NL: return multiply.template operator()<DType::kIQ4_NL>();
    case DType::kIQ4_XS: return multiply.template operator()<DType::kIQ4_XS>();
    case DType::kIQ3_S: return multiply.template operator()<DType::kIQ3_S>();
    case DType::kIQ3_XXS: return multiply.template operator()<DType::kIQ3_XXS>();
    case DType::kIQ2_S:
    case DType::kIQ2_XS: return multiply.template operator()<DType::kIQ2_XS>();
    case DType::kIQ2_XXS: return multiply.template operator()<DType::kIQ2_XXS>();
    case DType::kIQ1_S: return multiply.template operator()<DType::kIQ1_S>();
    case DType::kIQ1_M: return multiply.template operator()<DType::kIQ1_M>();
    case DType::kTQ1_0:
    case DType::kTQ2_0: return multiply.template operator()<DType::kTQ2_0>();
    case DType::kNVFP4: return multiply.template operator()<DType::kNVFP4>();
    default: return multiply.template operator()<DType::kQ8_0>();
  }
}

std::int64_t RowFloats(std::int64_t tokens) {
  return std::min(tokens, kMaxGroupTokens) * kTilePanels * kPanelRows;
}

#if HWY_TARGET == HWY_AVX3_DL
void MultiplyPanelsWithTiles(const Product& product, std::int64_t begin, std::int64_t end,
                             const PanelWorkspace& workspace) {
  auto* const tiles = reinterpret_cast<TileWorkspace*>(workspace.y + RowFloats(product.x.tokens));
  WithType(product.dtype, [&]<DType kType>() HWY_ATTR {
    MultiplyWithTiles<kType>(product, begin, end, workspace, *tiles);
  });
}
#endif

void MultiplyPanels(const Product& product, std::int64_t begin, std::int64_t end,
                    std::byte* memory) {
  const PanelWorkspace workspace(memory);
#if HWY_TARGET == HWY_AVX3_DL
  if (UsesMatrixTiles(product.x.tokens)) {
    return MultiplyPanelsWithTiles(product, begin, end, workspace);
  }
#endif
  WithType(product.dtype,
           [&]<DType kType>() HWY_ATTR { MultiplyFormat<kType>(product, begin, end, workspace); });
}

std::int64_t PanelWorkspaceBytes(std::int64_t tokens) {
  const std::int64_t bytes = kWorkspaceChunks * static_cast<std::int64_t>(sizeof(ChunkWorkspace)) +
                             RowFloats(tokens) * static_cast<std::int64_t>(sizeof(float));
#if HWY_TARGET == HWY_AVX3_DL
  if (UsesMatrixTiles(tokens)) return bytes + static_cast<std::int64_t>(sizeof(TileWorkspace));
#endif
  return bytes;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu::block {

HWY_EXPORT(PanelWorkspaceBytes);
HWY_EXPORT(MultiplyPanels);

std::int64_t PanelWorkspaceBytes(std::int64_t tokens) {
  return HWY_DYNAMIC_DISPATCH(PanelWorkspaceBytes)(tokens);
}

void MultiplyPanels(const Product& product, std::int64_t begin, std::int64_t end,
                    std::byte* workspace) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanels)(product, begin, end, workspace);
}

}  // namespace kvcache::cpu::block
#endif  // HWY_ONCE
