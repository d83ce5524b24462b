#include "backend/cuda/attention/attention_kernels.h"

#include "backend/cuda/attention/attend-inl.h"
#include "backend/cuda/attention/merge-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// Float keys and values.
KVCACHE_KERNEL(attend_4_ff, AttendArgs, kAttendThreads) {
  Attend<4, false, false>(args);
}
KVCACHE_KERNEL(attend_8_ff, AttendArgs, kAttendThreads) {
  Attend<8, false, false>(args);
}
KVCACHE_KERNEL(attend_16_ff, AttendArgs, kAttendThreads) {
  Attend<16, false, false>(args);
}
KVCACHE_KERNEL(attend_64_ff, AttendArgs, kAttendThreads) {
  Attend<64, false, false>(args);
}

// Block types.
KVCACHE_KERNEL(attend_4_bb, AttendArgs, kAttendThreads) {
  Attend<4, true, true>(args);
}
KVCACHE_KERNEL(attend_8_bb, AttendArgs, kAttendThreads) {
  Attend<8, true, true>(args);
}
KVCACHE_KERNEL(attend_16_bb, AttendArgs, kAttendThreads) {
  Attend<16, true, true>(args);
}
KVCACHE_KERNEL(attend_64_bb, AttendArgs, kAttendThreads) {
  Attend<64, true, true>(args);
}

// Float keys, values of block types.
KVCACHE_KERNEL(attend_4_fb, AttendArgs, kAttendThreads) {
  Attend<4, false, true>(args);
}
KVCACHE_KERNEL(attend_8_fb, AttendArgs, kAttendThreads) {
  Attend<8, false, true>(args);
}
KVCACHE_KERNEL(attend_16_fb, AttendArgs, kAttendThreads) {
  Attend<16, false, true>(args);
}
KVCACHE_KERNEL(attend_64_fb, AttendArgs, kAttendThreads) {
  Attend<64, false, true>(args);
}

// Keys of block types, float values.
KVCACHE_KERNEL(attend_4_bf, AttendArgs, kAttendThreads) {
  Attend<4, true, false>(args);
}
KVCACHE_KERNEL(attend_8_bf, AttendArgs, kAttendThreads) {
  Attend<8, true, false>(args);
}
KVCACHE_KERNEL(attend_16_bf, AttendArgs, kAttendThreads) {
  Attend<16, true, false>(args);
}
KVCACHE_KERNEL(attend_64_bf, AttendArgs, kAttendThreads) {
  Attend<64, true, false>(args);
}

KVCACHE_KERNEL(attention_merge, MergeArgs, kMergeThreads) {
  Merge(args);
}

}  // namespace kvcache::cuda
