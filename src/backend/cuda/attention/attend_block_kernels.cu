// Keys and values of block types.
#include "backend/cuda/attention/attend-inl.h"
#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

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

}  // namespace kvcache::cuda
