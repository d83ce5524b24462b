// Products of block-quantised weights with more than 8 columns.
#include "backend/cuda/linear/many-inl.h"

namespace kvcache::cuda::linear {

#define KVCACHE_LINEAR_MANY(name, type)                          \
  KVCACHE_KERNEL(linear_many_##name, LinearArgs, kManyThreads) { \
    MultiplyMany<type>(args);                                    \
  }

KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_MANY)

#undef KVCACHE_LINEAR_MANY

}  // namespace kvcache::cuda::linear
