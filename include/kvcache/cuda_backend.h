// The CUDA backend: the CPU backend's bits on a GPU of NVIDIA's, of compute capability 8.0 or newer. The driver's
// library is opened when a function here is first called, so one program serves machines with and without a GPU.
//
// A library that was built with KVCACHE_CUDA=off has these functions too. They then return kUnsupported.
//
// Thread safety: the functions may be called from any thread; for backends see kv_backend.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/backend.h"

namespace kvcache {

struct CudaOptions {
  int device = 0;  // its index among CudaDevices
  int threads =
      0;  // of the host: they pack weights, and carry copies; 0: one per core that this process may use
};

struct CudaDeviceInfo {
  std::string name;  // as the driver says it
  int capability_major = 0;
  int capability_minor = 0;
  std::size_t memory_bytes = 0;
  std::size_t free_bytes = 0;  // of them, now
};

// Returns the devices that the driver shows this process, in its order. Errors: kNotFound if there is no driver or
// no device; kUnsupported for a driver that is too old, or a library without CUDA; kIo with the driver's words.
Result<std::vector<CudaDeviceInfo>> CudaDevices();

// Returns a backend on a device. Errors: those of CudaDevices; kInvalidArgument for an index that does not exist;
// kUnsupported for a device that is too old; kOutOfMemory.
Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options = {});

}  // namespace kvcache
