// Products with weights in super-blocks of 256 with minima (chain kPer256WithMinimum).
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/block/per_256_minimum.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/block/multiply-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

template void MultiplyFormat<DType::kQ4_K>(const Product&, std::int64_t, std::int64_t,
                                           const PanelWorkspace&);
template void MultiplyFormat<DType::kQ5_K>(const Product&, std::int64_t, std::int64_t,
                                           const PanelWorkspace&);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();
