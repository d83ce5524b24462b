#include "backend/cpu/linear.h"

namespace kvcache::cpu {

Result<std::unique_ptr<LinearWeight>> MakeLinear(ThreadPool&, const TensorView&) {
  return Status(StatusCode::kUnsupported, "linear kernels are not built in");
}

Status Linear(ThreadPool&, Scratch&, const TensorView&, std::span<const LinearOutput>) {
  return Status(StatusCode::kUnsupported, "linear kernels are not built in");
}

}  // namespace kvcache::cpu
