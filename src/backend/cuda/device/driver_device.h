// A GPU behind NVIDIA's driver. Work goes to one stream of the device's primary context.
//
// Copies from and to the host go through page-locked memory, so that small ones do not wait for the queue, and the two
// steps of large ones overlap (driver_queue.h).
//
// Thread safety and errors: as Device.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/device/driver.h"

namespace kvcache::cuda {

// The kernels of a program: images for the driver (fatbin, cubin or PTX), and the CUDA version that it must have.
struct KernelImages {
  std::vector<const void*> images;
  int needed_version = 12000;
};

// The least capability that the kernels are written for (major × 10 + minor).
inline constexpr int kLeastCapability = 80;

// What the driver says of device `index`. Errors: kInvalidArgument for an index that does not exist. REQUIRES:
// StartDriver.
Result<int> CountDevices(const Driver& driver);
Result<DeviceInfo> DescribeDevice(const Driver& driver, int index);
// The memory that nobody has taken. It opens the device, and so takes a moment.
Result<std::size_t> FreeBytesOf(const Driver& driver, int index);

// Opens device `index`, for which `threads` threads of the host work. Errors: those of StartDriver; kInvalidArgument
// for an index that does not exist; kUnsupported for a device that is too old. REQUIRES: threads >= 1.
Result<std::unique_ptr<Device>> MakeDriverDevice(const Driver& driver, const KernelImages& kernels,
                                                 int index, int threads = 1);

}  // namespace kvcache::cuda
