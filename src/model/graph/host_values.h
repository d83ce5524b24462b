// Values that a caller gives or wants in host memory, for a backend that may work elsewhere. Over a backend that
// works in the host's memory nothing is copied.
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
  // Returns `values` [d0, d1] of the host as a view for the backend. It is valid until the next call of In or Out.
  Result<TensorView> In(KvBackend& backend, const float* values, std::int64_t d0, std::int64_t d1) {
    KVCACHE_ASSIGN_OR_RETURN(const TensorView view,
                             Out(backend, const_cast<float*>(values), d0, d1));
    if (backend.works_in_host_memory()) return view;
    KVCACHE_RETURN_IF_ERROR(backend.CopyFromHost(BytesAt(values, view), view));
    return view;
  }

  // Returns a view for the backend to which it writes the `values` [d0, d1] that the host wants. Deliver brings them.
  Result<TensorView> Out(KvBackend& backend, float* values, std::int64_t d0, std::int64_t d1) {
    if (backend.works_in_host_memory()) return TensorView::Dense(values, DType::kF32, d0, d1);
    KVCACHE_RETURN_IF_ERROR(buffer_.Reserve(backend, d0 * d1));
    return buffer_.At(0, d0, d1);
  }

  // REQUIRES: Out returned `from` for `values`.
  static Status Deliver(KvBackend& backend, const TensorView& from, float* values) {
    if (backend.works_in_host_memory()) return Status::Ok();
    const std::span<const std::byte> to = BytesAt(values, from);
    return backend.CopyToHost(from, {const_cast<std::byte*>(to.data()), to.size()});
  }

 private:
  static std::span<const std::byte> BytesAt(const float* values, const TensorView& view) {
    return std::as_bytes(std::span(values, static_cast<std::size_t>(view.elements())));
  }

  ActivationBuffer buffer_;
};

}  // namespace kvcache
