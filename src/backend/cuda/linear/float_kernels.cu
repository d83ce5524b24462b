// Products with float weights.
#include "backend/cuda/linear/float-inl.h"

namespace kvcache::cuda::linear {

KVCACHE_WAITING_KERNEL(linear_one_f32, LinearArgs, kFloatFewThreads) {
  MultiplyFloatFew<StoredF32, 1>(args);
}
KVCACHE_WAITING_KERNEL(linear_one_f16, LinearArgs, kFloatFewThreads) {
  MultiplyFloatFew<StoredF16, 1>(args);
}
KVCACHE_WAITING_KERNEL(linear_one_bf16, LinearArgs, kFloatFewThreads) {
  MultiplyFloatFew<StoredBF16, 1>(args);
}
KVCACHE_WAITING_KERNEL(linear_few_f32, LinearArgs, kFloatFewThreads) {
  MultiplyFloatFew<StoredF32, 8>(args);
}
KVCACHE_WAITING_KERNEL(linear_few_f16, LinearArgs, kFloatFewThreads) {
  MultiplyFloatFew<StoredF16, 8>(args);
}
KVCACHE_WAITING_KERNEL(linear_few_bf16, LinearArgs, kFloatFewThreads) {
  MultiplyFloatFew<StoredBF16, 8>(args);
}
KVCACHE_KERNEL(linear_many_f32, LinearArgs, kFloatManyThreads) {
  MultiplyFloatMany<StoredF32>(args);
}
KVCACHE_KERNEL(linear_many_f16, LinearArgs, kFloatManyThreads) {
  MultiplyFloatMany<StoredF16>(args);
}
KVCACHE_KERNEL(linear_many_bf16, LinearArgs, kFloatManyThreads) {
  MultiplyFloatMany<StoredBF16>(args);
}

}  // namespace kvcache::cuda::linear
