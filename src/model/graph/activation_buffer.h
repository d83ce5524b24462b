// The activations of a forward pass: one buffer of the backend, cut into pieces by the model.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kvcache/backend.h"
#include "kvcache/status.h"

namespace kvcache {

class ActivationBuffer {
 public:
  // Room for `values` f32 in all, with undefined contents. Keeps a larger buffer.
  Status Reserve(KvBackend& backend, std::int64_t values) {
    const auto bytes = static_cast<std::size_t>(values) * sizeof(float);
    if (buffer_ && buffer_->size_bytes() >= bytes) return Status::Ok();
    buffer_.reset();
    KVCACHE_ASSIGN_OR_RETURN(buffer_, backend.Allocate(bytes));
    return Status::Ok();
  }

  std::int64_t values() const {
    return buffer_ ? static_cast<std::int64_t>(buffer_->size_bytes() / sizeof(float)) : 0;
  }

  // The piece from value `offset` on, as a dense f32 view.
  TensorView At(std::int64_t offset, std::int64_t d0, std::int64_t d1, std::int64_t d2 = 1) const {
    return TensorView::Dense(buffer_->data() + offset * static_cast<std::int64_t>(sizeof(float)),
                             DType::kF32, d0, d1, d2);
  }

 private:
  std::unique_ptr<Buffer> buffer_;
};

// Values rounded up so that the next piece starts on a cache line.
constexpr std::int64_t AlignedValues(std::int64_t values) {
  return (values + 15) / 16 * 16;
}

}  // namespace kvcache
