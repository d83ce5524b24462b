// Memory of the device for one call of the backend: results on the way, and arrays that the host hands to
// a kernel. All of it is free again when the next call begins; the queue's order keeps the kernels of this
// call from the writes of the next.
//
// Thread safety: none. Errors: kOutOfMemory of the device.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/device/device.h"

namespace kvcache::cuda {

class CallMemory {
 public:
  // REQUIRES: `device` outlives the object.
  explicit CallMemory(Device& device) : device_(device) {}

  // Everything that was taken before is free again. The next Take returns an error of waiting for the work.
  void BeginCall();

  // Returns `bytes` bytes of the device, 256-byte aligned, not zeroed. What was taken in this call stays
  // where it is.
  Result<std::byte*> Take(std::size_t bytes);

  // Copies `values` to the device.
  template <class T>
  Result<const T*> Upload(std::span<const T> values) {
    KVCACHE_ASSIGN_OR_RETURN(std::byte* const at, Take(values.size_bytes()));
    KVCACHE_RETURN_IF_ERROR(device_.CopyIn(std::as_bytes(values), at));
    return reinterpret_cast<const T*>(at);
  }

 private:
  Device& device_;
  std::unique_ptr<Buffer> chunk_;
  std::size_t used_ = 0;
  Status failed_;  // the error that the next Take returns
  // Chunks that were full before the call ended: the call's kernels may still read them.
  std::vector<std::unique_ptr<Buffer>> full_;
};

}  // namespace kvcache::cuda
