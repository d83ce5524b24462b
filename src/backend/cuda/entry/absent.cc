// The public functions of a library without the CUDA backend.
#include "kvcache/cuda_backend.h"

namespace kvcache {
namespace {

Status WithoutCuda() {
  return {StatusCode::kUnsupported, "this program was built without CUDA"};
}

}  // namespace

Result<std::vector<CudaDeviceInfo>> CudaDevices() {
  return WithoutCuda();
}

Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& /*options*/) {
  return WithoutCuda();
}

}  // namespace kvcache
