// Products of block-quantised weights with at most 8 columns.
#include "backend/cuda/linear/few-inl.h"

namespace kvcache::cuda::linear {

#define KVCACHE_LINEAR_FEW(name, type)                         \
  KVCACHE_KERNEL(linear_few_##name, LinearArgs, kFewThreads) { \
    MultiplyFew<type>(args);                                   \
  }

KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_FEW)

#undef KVCACHE_LINEAR_FEW

}  // namespace kvcache::cuda::linear
