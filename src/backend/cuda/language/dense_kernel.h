// Kernels whose registers are limited, so that a processor runs several of their blocks at once.
//
//   KVCACHE_DENSE_KERNEL(name, Args, threads, blocks) { body }   as KVCACHE_KERNEL; at least `blocks` at once
#pragma once

#include "backend/cuda/language/kernel.h"

#if defined(__CUDACC__)
#define KVCACHE_DENSE_KERNEL(name, Args, threads, blocks)                     \
  static_assert(sizeof(Args) <= 4000);                                        \
  static_assert((threads) % 32 == 0 && (threads) >= 32 && (threads) <= 1024); \
  static KVCACHE_DEVICE void name##_body(const Args& args);                   \
  extern "C" __global__ void __launch_bounds__(threads, blocks)               \
      name(const __grid_constant__ Args args) {                               \
    ::kvcache::cuda::LetNextStart();                                          \
    ::kvcache::cuda::WaitForEarlier();                                        \
    name##_body(args);                                                        \
  }                                                                           \
  static KVCACHE_DEVICE void name##_body(const Args& args)
#else
#define KVCACHE_DENSE_KERNEL(name, Args, threads, blocks) KVCACHE_KERNEL(name, Args, threads)
#endif
