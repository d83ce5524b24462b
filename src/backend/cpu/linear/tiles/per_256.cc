// Products by matrix tiles with weights in super-blocks of 256 with scales per 32 (chains kPer256, kPer256WithMinimum).
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/tiles/per_256.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/tiles/multiply-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

template void MultiplyWithTiles<DType::kQ4_K>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kQ5_K>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kIQ4_XS>(const Product&, std::int64_t, std::int64_t,
                                                const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kIQ3_S>(const Product&, std::int64_t, std::int64_t,
                                               const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kIQ3_XXS>(const Product&, std::int64_t, std::int64_t,
                                                 const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kIQ2_XXS>(const Product&, std::int64_t, std::int64_t,
                                                 const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kIQ1_S>(const Product&, std::int64_t, std::int64_t,
                                               const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kTQ2_0>(const Product&, std::int64_t, std::int64_t,
                                               const PanelWorkspace&, TileWorkspace&);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL
