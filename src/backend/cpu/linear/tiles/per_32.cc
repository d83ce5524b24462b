// Products by matrix tiles with weights in blocks of 32 and of 16 (chains kPer32, kPer32WithMinimum, kPer16).
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/tiles/per_32.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/tiles/multiply-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

template void MultiplyWithTiles<DType::kQ8_0>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kQ4_0>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kQ5_0>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kMXFP4>(const Product&, std::int64_t, std::int64_t,
                                               const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kIQ4_NL>(const Product&, std::int64_t, std::int64_t,
                                                const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kQ4_1>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kQ5_1>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&, TileWorkspace&);
template void MultiplyWithTiles<DType::kNVFP4>(const Product&, std::int64_t, std::int64_t,
                                               const PanelWorkspace&, TileWorkspace&);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL
