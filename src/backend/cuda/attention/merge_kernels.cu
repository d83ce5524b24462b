#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/merge-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// For up to 128 values of a head, and for more.
KVCACHE_KERNEL(attention_merge_128, MergeArgs, kMergeThreads) {
  Merge<1>(args);
}
KVCACHE_KERNEL(attention_merge, MergeArgs, kMergeThreads) {
  Merge<kMergeDims>(args);
}

}  // namespace kvcache::cuda
