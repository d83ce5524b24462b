// Decode over aligned splits.
#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/decode_blocks-inl.h"
#include "backend/cuda/attention/decode_float-inl.h"
#include "backend/cuda/language/dense_kernel.h"

namespace kvcache::cuda {

KVCACHE_DENSE_KERNEL(decode_4_f16, AttendArgs, kAttendThreads, kDecodeBlocks) {
  DecodeFloats<4, StoredF16>(args);
}
KVCACHE_DENSE_KERNEL(decode_8_f16, AttendArgs, kAttendThreads, kDecodeBlocks) {
  DecodeFloats<8, StoredF16>(args);
}
KVCACHE_DENSE_KERNEL(decode_4_bf16, AttendArgs, kAttendThreads, kDecodeBlocks) {
  DecodeFloats<4, StoredBF16>(args);
}
KVCACHE_DENSE_KERNEL(decode_8_bf16, AttendArgs, kAttendThreads, kDecodeBlocks) {
  DecodeFloats<8, StoredBF16>(args);
}
KVCACHE_DENSE_KERNEL(decode_4_q8_q8, AttendArgs, kAttendThreads, 2) {
  DecodeBlocks<4, true, true>(args);
}
KVCACHE_DENSE_KERNEL(decode_4_q8_q4, AttendArgs, kAttendThreads, 2) {
  DecodeBlocks<4, true, false>(args);
}
KVCACHE_DENSE_KERNEL(decode_4_q4_q8, AttendArgs, kAttendThreads, 2) {
  DecodeBlocks<4, false, true>(args);
}
KVCACHE_DENSE_KERNEL(decode_4_q4_q4, AttendArgs, kAttendThreads, kDecodeBlocks) {
  DecodeBlocks<4, false, false>(args);
}
KVCACHE_DENSE_KERNEL(decode_8_q8_q8, AttendArgs, kAttendThreads, 2) {
  DecodeBlocks<8, true, true>(args);
}
KVCACHE_DENSE_KERNEL(decode_8_q8_q4, AttendArgs, kAttendThreads, 2) {
  DecodeBlocks<8, true, false>(args);
}
KVCACHE_DENSE_KERNEL(decode_8_q4_q8, AttendArgs, kAttendThreads, 2) {
  DecodeBlocks<8, false, true>(args);
}
KVCACHE_DENSE_KERNEL(decode_8_q4_q4, AttendArgs, kAttendThreads, 2) {
  DecodeBlocks<8, false, false>(args);
}

}  // namespace kvcache::cuda
