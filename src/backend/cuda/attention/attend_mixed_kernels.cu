// Keys of block types with float values, and float keys with values of block types.
#include "backend/cuda/attention/attend-inl.h"
#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

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

}  // namespace kvcache::cuda
