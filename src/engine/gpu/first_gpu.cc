// The first GPU of the machine, through the CUDA backend.
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "engine/gpu/gpu_backend.h"
#include "kvcache/cuda_backend.h"

namespace kvcache {

Result<Gpu> FirstGpu() {
  const char* const setting = std::getenv("KVCACHE_GPU");
  if (setting != nullptr && std::string_view(setting) == "0") {
    return Unsupported("KVCACHE_GPU is 0: GPUs are switched off");
  }
  KVCACHE_ASSIGN_OR_RETURN(std::vector<CudaDeviceInfo> devices, CudaDevices());
  CudaDeviceInfo& first = devices.front();
  return Gpu{.name = std::move(first.name),
             .free_bytes = static_cast<std::int64_t>(first.free_bytes),
             .open = [](int threads) { return MakeCudaBackend({.threads = threads}); }};
}

}  // namespace kvcache
