// Products by matrix tiles with weights in super-blocks of 256 with scales per 16 (chains kPer256Of16,
// kPer256Of16WithMinimum). IQ2_S is IQ2_XS here.
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/tiles/per_256_of_16.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/tiles/multiply-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

template void MultiplyWithTiles<DType::kQ6_K>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kQ3_K>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kIQ2_XS>(const Product&, std::int64_t, std::int64_t,
                                                const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kIQ1_M>(const Product&, std::int64_t, std::int64_t,
                                               const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kQ2_K>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL
