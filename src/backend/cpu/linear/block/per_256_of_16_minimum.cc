// Products with weights in super-blocks of 256 with scales and minima per 16
// (chain kPer256Of16WithMinimum).
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/block/per_256_of_16_minimum.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/linear/block/multiply-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

template void MultiplyFormat<DType::kQ2_K>(const Product&, std::int64_t, std::int64_t,
                                           const PanelWorkspace&);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();
