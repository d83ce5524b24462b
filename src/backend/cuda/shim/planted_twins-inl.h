// KVCACHE_TWINS(name, threads) { body }: the kernels planted_NAME, with `kBug` true, and correct_NAME.
// KVCACHE_WAITING_TWINS: the same as KVCACHE_WAITING_KERNEL.
#pragma once

#include "backend/cuda/language/kernel.h"

#define KVCACHE_TWINS(name, threads) KVCACHE_TWINS_(KVCACHE_KERNEL, name, threads)
#define KVCACHE_WAITING_TWINS(name, threads) KVCACHE_TWINS_(KVCACHE_WAITING_KERNEL, name, threads)

#define KVCACHE_TWINS_(KERNEL, name, threads)               \
  template <bool kBug>                                      \
  KVCACHE_DEVICE void name##_twin(const PlantedArgs& args); \
  KERNEL(planted_##name, PlantedArgs, threads) {            \
    name##_twin<true>(args);                                \
  }                                                         \
  KERNEL(correct_##name, PlantedArgs, threads) {            \
    name##_twin<false>(args);                               \
  }                                                         \
  template <bool kBug>                                      \
  KVCACHE_DEVICE void name##_twin([[maybe_unused]] const PlantedArgs& args)
