// KVCACHE_TWINS(name, threads) { body }: the kernels planted_NAME, with `kBug` true, and correct_NAME.
#pragma once

#include "backend/cuda/language/kernel.h"

#define KVCACHE_TWINS(name, threads)                        \
  template <bool kBug>                                      \
  KVCACHE_DEVICE void name##_twin(const PlantedArgs& args); \
  KVCACHE_KERNEL(planted_##name, PlantedArgs, threads) {    \
    name##_twin<true>(args);                                \
  }                                                         \
  KVCACHE_KERNEL(correct_##name, PlantedArgs, threads) {    \
    name##_twin<false>(args);                               \
  }                                                         \
  template <bool kBug>                                      \
  KVCACHE_DEVICE void name##_twin([[maybe_unused]] const PlantedArgs& args)
