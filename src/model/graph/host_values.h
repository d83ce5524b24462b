// Values that a caller wants in host memory, of a backend that may work elsewhere. Over a backend that works in the
// host's memory nothing is copied.
//
// Thread safety: one thread at a time. Errors: kOutOfMemory and those of the copies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/kv_backend.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "model/graph/activation_buffer.h"

namespace kvcache {

class HostValues {
 public:
  // Returns a view for the backend to which it writes the `values` [d0, d1] that the host wants. Deliver brings them.
  Result<TensorView> Out(KvBackend& backend, float* values, std::int64_t d0, std::int64_t d1) {
    if (backend.works_in_host_memory()) return TensorView::Dense(values, DType::kF32, d0, d1);
    KVCACHE_RETURN_IF_ERROR(buffer_.Reserve(backend, d0 * d1));
    return buffer_.At(0, d0, d1);
  }

  // REQUIRES: Out returned `from` for `values`.
  static Status Deliver(KvBackend& backend, const TensorView& from, float* values) {
    if (backend.works_in_host_memory()) return Status::Ok();
    const std::span to(values, static_cast<std::size_t>(from.elements()));
    return backend.CopyToHost(from, std::as_writable_bytes(to));
  }

 private:
  ActivationBuffer buffer_;
};

}  // namespace kvcache
