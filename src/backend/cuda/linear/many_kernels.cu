// Products of block-quantised weights with more than 8 columns.
#include "backend/cuda/language/dense_kernel.h"
#include "backend/cuda/linear/many-inl.h"

namespace kvcache::cuda::linear {

#define KVCACHE_LINEAR_MANY(name, type)                                                       \
  KVCACHE_WAITING_DENSE_KERNEL(linear_wide_##name, LinearArgs, kManyThreads, kManyBlocks) {   \
    MultiplyMany<type, WideShapeOf(type)>(args);                                              \
  }                                                                                           \
  KVCACHE_WAITING_DENSE_KERNEL(linear_middle_##name, LinearArgs, kManyThreads, kManyBlocks) { \
    MultiplyMany<type, kMiddleShape>(args);                                                   \
  }                                                                                           \
  KVCACHE_WAITING_DENSE_KERNEL(linear_narrow_##name, LinearArgs, kManyThreads, kManyBlocks) { \
    MultiplyMany<type, kNarrowShape>(args);                                                   \
  }

KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_MANY)

#undef KVCACHE_LINEAR_MANY

}  // namespace kvcache::cuda::linear
