// Products of block-quantised weights with one column.
#include "backend/cuda/linear/one-inl.h"

namespace kvcache::cuda::linear {

#define KVCACHE_LINEAR_ONE(name, type)                                 \
  KVCACHE_WAITING_KERNEL(linear_one_##name, LinearArgs, kOneThreads) { \
    MultiplyOne<type>(args);                                           \
  }

KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_ONE)

#undef KVCACHE_LINEAR_ONE

}  // namespace kvcache::cuda::linear
