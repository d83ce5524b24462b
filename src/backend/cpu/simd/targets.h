// Which instruction sets the kernels are compiled for. Every file that includes Highway
// includes this first: the choice at run time counts on all of them having the same list.
//
//   AVX3_DL (AVX-512 with VNNI), AVX3, AVX2, and the portable path: EMU128 on x86-64, NEON on
//   Arm. Processors between (SSE4) have no fused multiply-add, so they take the portable one;
//   kernels keep vectors in arrays, which vectors of unknown size (SVE) do not allow.
#pragma once

#define HWY_WANT_AVX3_DL
#ifdef KVCACHE_FEW_TARGETS  // the sanitizers' builds: the widest path and the portable one
#define KVCACHE_LEFT_OUT_TARGETS (HWY_AVX2 | HWY_AVX3)
#else
#define KVCACHE_LEFT_OUT_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                                \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE_256 | HWY_SVE2 | HWY_SVE2_128 | \
   KVCACHE_LEFT_OUT_TARGETS)
// Off by default for GCC before 12.3, over a defect in 16-bit high products
// (gcc.gnu.org/bugzilla 106322), which no kernel here uses.
#define HWY_BROKEN_EMU128 0
