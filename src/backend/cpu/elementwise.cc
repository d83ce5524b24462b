#include "backend/cpu/elementwise.h"

namespace kvcache::cpu {

static Status Missing() {
  return Status(StatusCode::kUnsupported, "elementwise kernels are not built in");
}

Status Embed(ThreadPool&, const TensorView&, std::span<const std::int32_t>, const TensorView&) {
  return Missing();
}
Status RmsNorm(ThreadPool&, const TensorView&, const TensorView&, float, const TensorView&) {
  return Missing();
}
Status Rope(ThreadPool&, Scratch&, const TensorView&, std::span<const Position>,
            const RopeParams&) {
  return Missing();
}
Status SwiGlu(ThreadPool&, const TensorView&, const TensorView&) {
  return Missing();
}
Status Add(ThreadPool&, const TensorView&, const TensorView&) {
  return Missing();
}

}  // namespace kvcache::cpu
