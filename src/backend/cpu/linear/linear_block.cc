// Chooses the instruction set and the weight type of a product; the kernels are
// linear_block_multiply-inl.h.
#include "backend/cpu/linear/linear_block.h"

#include <algorithm>

#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/linear_block.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/linear_block_format-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

void MultiplyPanels(const Product& product, std::int64_t begin, std::int64_t end,
                    std::byte* memory) {
  const PanelWorkspace workspace(memory);
  switch (product.dtype) {
    case DType::kQ4_0: return MultiplyFormat<DType::kQ4_0>(product, begin, end, workspace);
    case DType::kQ4_1: return MultiplyFormat<DType::kQ4_1>(product, begin, end, workspace);
    case DType::kQ5_0: return MultiplyFormat<DType::kQ5_0>(product, begin, end, workspace);
    case DType::kQ5_1: return MultiplyFormat<DType::kQ5_1>(product, begin, end, workspace);
    case DType::kMXFP4: return MultiplyFormat<DType::kMXFP4>(product, begin, end, workspace);
    case DType::kQ4_K: return MultiplyFormat<DType::kQ4_K>(product, begin, end, workspace);
    case DType::kQ5_K: return MultiplyFormat<DType::kQ5_K>(product, begin, end, workspace);
    case DType::kQ6_K: return MultiplyFormat<DType::kQ6_K>(product, begin, end, workspace);
    case DType::kQ2_K: return MultiplyFormat<DType::kQ2_K>(product, begin, end, workspace);
    case DType::kQ3_K: return MultiplyFormat<DType::kQ3_K>(product, begin, end, workspace);
    case DType::kIQ4_NL: return MultiplyFormat<DType::kIQ4_NL>(product, begin, end, workspace);
    case DType::kIQ4_XS: return MultiplyFormat<DType::kIQ4_XS>(product, begin, end, workspace);
    case DType::kIQ3_S: return MultiplyFormat<DType::kIQ3_S>(product, begin, end, workspace);
    case DType::kIQ3_XXS: return MultiplyFormat<DType::kIQ3_XXS>(product, begin, end, workspace);
    case DType::kIQ2_S:
    case DType::kIQ2_XS: return MultiplyFormat<DType::kIQ2_XS>(product, begin, end, workspace);
    case DType::kIQ2_XXS: return MultiplyFormat<DType::kIQ2_XXS>(product, begin, end, workspace);
    case DType::kIQ1_S: return MultiplyFormat<DType::kIQ1_S>(product, begin, end, workspace);
    case DType::kIQ1_M: return MultiplyFormat<DType::kIQ1_M>(product, begin, end, workspace);
    case DType::kTQ1_0:
    case DType::kTQ2_0: return MultiplyFormat<DType::kTQ2_0>(product, begin, end, workspace);
    case DType::kNVFP4: return MultiplyFormat<DType::kNVFP4>(product, begin, end, workspace);
    default: return MultiplyFormat<DType::kQ8_0>(product, begin, end, workspace);
  }
}

std::int64_t PanelWorkspaceBytes(std::int64_t tokens) {
  const std::int64_t rows = std::min(tokens, kMaxGroupTokens) * kTilePanels * kPanelRows;
  return kTilePanels * static_cast<std::int64_t>(sizeof(ChunkWorkspace)) +
         rows * static_cast<std::int64_t>(sizeof(float));
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
