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

// Whether accesses to memory are checked. Without, kernels run five times as fast; barriers and calls are
// checked all the same.
enum class AccessChecks : std::uint8_t { kOff, kOn };

struct ShimOptions {
  std::uint64_t seed = 1;  // chooses the order of blocks and threads
  AccessChecks checks = AccessChecks::kOn;
  std::size_t memory_bytes = std::size_t{1} << 30;
  std::size_t shared_bytes = std::size_t{99} << 10;  // what every device since sm_80 has
};

std::unique_ptr<Device> MakeShimDevice(const ShimOptions& options = {});

}  // namespace kvcache::cuda
