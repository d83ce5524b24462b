// The device of the tests: kernels run on the host, under the checks that docs/design/cuda.md lists. An
// error of a kernel fails its Launch with kInternal; what the kernel has written by then stays.
//
// Thread safety: as Device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/cuda/device/device.h"

namespace kvcache::cuda {

struct ShimOptions {
  std::uint64_t seed = 1;  // chooses the order of blocks and threads
  std::size_t memory_bytes = std::size_t{1} << 30;
  std::size_t shared_bytes = std::size_t{99} << 10;  // what every device since sm_80 has
};

std::unique_ptr<Device> MakeShimDevice(const ShimOptions& options = {});

}  // namespace kvcache::cuda
