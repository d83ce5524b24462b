// Products with weights in blocks of 32 without minima (chain kPer32).
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/block/per_32.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/block/multiply-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

template void MultiplyFormat<DType::kQ4_0>(const Product&, std::int64_t, std::int64_t,
                                           const PanelWorkspace&);
template void MultiplyFormat<DType::kQ5_0>(const Product&, std::int64_t, std::int64_t,
                                           const PanelWorkspace&);
template void MultiplyFormat<DType::kQ8_0>(const Product&, std::int64_t, std::int64_t,
                                           const PanelWorkspace&);
template void MultiplyFormat<DType::kMXFP4>(const Product&, std::int64_t, std::int64_t,
                                            const PanelWorkspace&);
template void MultiplyFormat<DType::kIQ4_NL>(const Product&, std::int64_t, std::int64_t,
                                             const PanelWorkspace&);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();
