// Latents of q8_0.
#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/latents-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

KVCACHE_KERNEL(attend_16_latent, AttendArgs, kAttendThreads) {
  AttendLatents<16>(args);
}
KVCACHE_KERNEL(attend_64_latent, AttendArgs, kAttendThreads) {
  AttendLatents<64>(args);
}
KVCACHE_KERNEL(attention_merge_latent, MergeArgs, kMergeThreads) {
  MergeLatents(args);
}

}  // namespace kvcache::cuda
