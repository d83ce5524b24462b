// The instruction sets that the kernels are compiled for (Highway calls them targets). Every file
// that includes Highway includes this header first: dispatch at run time requires that all files
// have the same list.
//
//   AVX3_DL   AVX-512 with VNNI
//   AVX3      AVX-512
//   AVX2      with AVX-VNNI where the processor has it: the target AVX_VNNI (cpu_target.h)
//   EMU128    the portable target on x86-64
//   NEON      the only target on Arm, with the products of bytes that the processor has: the targets NEON_DOTPROD and
//             NEON_I8MM (cpu_target.h)
//
// Processors between AVX2 and the portable target (SSE4) have no fused multiply-add, so they use
// the portable one. Vectors of unknown size (SVE) are left out, since the kernels keep vectors in
// arrays.
//
// KVCACHE_NATIVE_TARGET is one of these names, with the prefix HWY_: the kernels are then compiled
// for it and the portable target only (cmake/KvcacheCpuTargets.cmake).
#pragma once

#define HWY_WANT_AVX3_DL
#if defined(__aarch64__)
// There is one target, so there is nothing to dispatch. Highway would compile it with attributes for AES, which no
// kernel uses and old processors lack; GCC cannot inline what has other attributes, such as a struct's constructor.
#define TOOLCHAIN_MISS_SYS_AUXV_H
#endif
#if defined(KVCACHE_NATIVE_TARGET)
#define KVCACHE_LEFT_OUT_TARGETS ((HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL) & ~KVCACHE_NATIVE_TARGET)
#elif defined(KVCACHE_FEW_TARGETS)  // fast to compile: the widest target and the portable one
#define KVCACHE_LEFT_OUT_TARGETS (HWY_AVX2 | HWY_AVX3)
#else
#define KVCACHE_LEFT_OUT_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS                                                \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE_256 | HWY_SVE2 | HWY_SVE2_128 | \
   KVCACHE_LEFT_OUT_TARGETS)
// Highway disables EMU128 for GCC before 12.3 because of a defect in 16-bit high products
// (gcc.gnu.org/bugzilla 106322). No kernel here uses them.
#define HWY_BROKEN_EMU128 0
