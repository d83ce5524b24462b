// Kernels whose registers are limited, so that a processor runs several of their blocks at once.
//
//   KVCACHE_DENSE_KERNEL(name, Args, threads, blocks) { body }   as KVCACHE_KERNEL; at least `blocks` at once
//   KVCACHE_WAITING_DENSE_KERNEL(…)                              as KVCACHE_WAITING_KERNEL
#pragma once

#include "backend/cuda/language/kernel.h"

#if defined(__CUDACC__)
#define KVCACHE_DENSE_KERNEL(name, Args, threads, blocks) \
  KVCACHE_KERNEL_(name, Args, threads, (threads, blocks), ::kvcache::cuda::WaitForEarlier())
#define KVCACHE_WAITING_DENSE_KERNEL(name, Args, threads, blocks) \
  KVCACHE_KERNEL_(name, Args, threads, (threads, blocks), )
#else
#define KVCACHE_DENSE_KERNEL(name, Args, threads, blocks) KVCACHE_KERNEL(name, Args, threads)
#define KVCACHE_WAITING_DENSE_KERNEL(name, Args, threads, blocks) \
  KVCACHE_WAITING_KERNEL(name, Args, threads)
#endif
