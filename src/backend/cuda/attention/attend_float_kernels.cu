// Float keys and values.
#include "backend/cuda/attention/attend-inl.h"
#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

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

}  // namespace kvcache::cuda
