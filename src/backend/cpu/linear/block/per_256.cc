// Products with weights in super-blocks of 256 with scales per 32 (chain kPer256). TQ1_0 is TQ2_0 here.
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/block/per_256.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/block/multiply-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

template void MultiplyFormat<DType::kIQ4_XS>(const Product&, std::int64_t, std::int64_t,
                                             const PanelWorkspace&);
template void MultiplyFormat<DType::kIQ3_S>(const Product&, std::int64_t, std::int64_t,
                                            const PanelWorkspace&);
template void MultiplyFormat<DType::kIQ3_XXS>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&);
template void MultiplyFormat<DType::kIQ2_XXS>(const Product&, std::int64_t, std::int64_t,
                                              const PanelWorkspace&);
template void MultiplyFormat<DType::kIQ1_S>(const Product&, std::int64_t, std::int64_t,
                                            const PanelWorkspace&);
template void MultiplyFormat<DType::kTQ2_0>(const Product&, std::int64_t, std::int64_t,
                                            const PanelWorkspace&);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();
