// The kernels that the build embedded in this program (cmake/KvcacheCuda.cmake).
#pragma once

#include "backend/cuda/device/driver_device.h"

namespace kvcache::cuda {

const KernelImages& ProgramKernels();

}  // namespace kvcache::cuda
