#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/merge-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

KVCACHE_KERNEL(attention_merge, MergeArgs, kMergeThreads) {
  Merge(args);
}

}  // namespace kvcache::cuda
