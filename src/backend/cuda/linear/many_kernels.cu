// Products of block-quantised weights with more than 8 columns.
#include "backend/cuda/linear/many-inl.h"

namespace kvcache::cuda::linear {

#define KVCACHE_LINEAR_MANY(name, type)                            \
  KVCACHE_KERNEL(linear_wide_##name, LinearArgs, kManyThreads) {   \
    MultiplyMany<type, WideShapeOf(type)>(args);                   \
  }                                                                \
  KVCACHE_KERNEL(linear_narrow_##name, LinearArgs, kManyThreads) { \
    MultiplyMany<type, NarrowShapeOf(type)>(args);                 \
  }

KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_MANY)

#undef KVCACHE_LINEAR_MANY

}  // namespace kvcache::cuda::linear
