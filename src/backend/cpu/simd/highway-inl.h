// Highway's operations, for every target. Include this header in place of hwy/highway.h.
//
// An operation of the portable target is a loop over the elements of an array. Highway forces each
// one inline. A developer's build leaves that to the compiler: the portable kernels compile five
// times as fast and run at a quarter of the speed, with the same bits.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_HIGHWAY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_HIGHWAY_INL_H_
#undef KVCACHE_BACKEND_CPU_HIGHWAY_INL_H_
#else
#define KVCACHE_BACKEND_CPU_HIGHWAY_INL_H_
#endif

#include "backend/cpu/simd/targets.h"
#include "hwy/base.h"

#if HWY_TARGET == HWY_EMU128 && defined(KVCACHE_NATIVE_TARGET)
#pragma push_macro("HWY_API")
#undef HWY_API
#define HWY_API static inline HWY_MAYBE_UNUSED
#include "hwy/highway.h"
#pragma pop_macro("HWY_API")
#else
#include "hwy/highway.h"
#endif

#endif  // per-target include guard
