// Decode attention's kernels for keys and values of type f16.
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/decode/f16.cc"
#include "hwy/foreach_target.h"

// After foreach_target.
#include "backend/cpu/attention/decode/kernels-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

template struct DecodeKernels<DType::kF16>;

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();
