// The first GPU of the machine, through the CUDA backend.
#include <cstdlib>
#include <string_view>

#include "base/errors.h"
#include "engine/gpu/gpu_backend.h"

namespace kvcache {

Result<Gpu> FirstGpu() {
  const char* const setting = std::getenv("KVCACHE_GPU");
  if (setting != nullptr && std::string_view(setting) == "0") {
    return Unsupported("KVCACHE_GPU is 0: GPUs are switched off");
  }
  return Unsupported("this program was built without CUDA");
}

}  // namespace kvcache
