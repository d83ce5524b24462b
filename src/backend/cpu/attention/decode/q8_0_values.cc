// Decode attention's kernels for type q8_0: the weighted sums of values.
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/decode/q8_0_values.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention/decode/kernels-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

template void DecodeKernels<DType::kQ8_0>::Weight(const LayerKv&, int, const WeightedRows&, int,
                                                  float*, Prefetcher*);

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();
