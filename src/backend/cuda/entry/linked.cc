// The public functions of a library with the CUDA backend.
#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device/driver_device.h"
#include "backend/cuda/entry/program_kernels.h"
#include "kvcache/cuda_backend.h"
#include "platform/processors.h"

namespace kvcache {
namespace {

// Fewer keep the link busy, and to wake each takes a microsecond.
constexpr int kMostThreads = 32;

// The driver's library, opened once.
Result<const cuda::Driver*> ProgramDriver() {
  static const Result<cuda::Driver> driver = cuda::OpenDriver();
  if (!driver.ok()) return driver.status();
  return &driver.value();
}

}  // namespace

Result<std::vector<CudaDeviceInfo>> CudaDevices() {
  KVCACHE_ASSIGN_OR_RETURN(const cuda::Driver* const driver, ProgramDriver());
  KVCACHE_RETURN_IF_ERROR(cuda::StartDriver(*driver, cuda::ProgramKernels().needed_version));
  KVCACHE_ASSIGN_OR_RETURN(const int count, cuda::CountDevices(*driver));
  std::vector<CudaDeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    KVCACHE_ASSIGN_OR_RETURN(cuda::DeviceInfo info, cuda::DescribeDevice(*driver, i));
    KVCACHE_ASSIGN_OR_RETURN(const std::size_t free_bytes, cuda::FreeBytesOf(*driver, i));
    devices.push_back({.name = std::move(info.name),
                       .capability_major = info.capability / 10,
                       .capability_minor = info.capability % 10,
                       .memory_bytes = info.memory_bytes,
                       .free_bytes = free_bytes});
  }
  return devices;
}

Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options) {
  KVCACHE_ASSIGN_OR_RETURN(const cuda::Driver* const driver, ProgramDriver());
  const int asked = options.threads > 0 ? options.threads : FindProcessorLimits().DefaultThreads();
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Device> device,
                           cuda::MakeDriverDevice(*driver, cuda::ProgramKernels(), options.device,
                                                  std::min(asked, kMostThreads)));
  return std::unique_ptr<Backend>(std::make_unique<cuda::CudaBackend>(std::move(device)));
}

}  // namespace kvcache
