// The activations of a forward pass: one backend buffer that a Pass divides into views.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "kvcache/backend.h"
#include "kvcache/status.h"

namespace kvcache {

class ActivationBuffer {
 public:
  // Allocates space for `values` f32 values in total, with undefined contents. Keeps the present
  // buffer if it is large enough. Errors: kOutOfMemory with the size.
  Status Reserve(KvBackend& backend, std::int64_t values) {
    const auto bytes = static_cast<std::size_t>(values) * sizeof(float);
    if (buffer_ && buffer_->size_bytes() >= bytes) return Status::Ok();
    buffer_.reset();
    KVCACHE_ASSIGN_OR_RETURN(buffer_, backend.Allocate(bytes));
    return Status::Ok();
  }

  std::int64_t bytes() const {
    return buffer_ ? static_cast<std::int64_t>(buffer_->size_bytes()) : 0;
  }
  std::int64_t values() const { return bytes() / static_cast<std::int64_t>(sizeof(float)); }

  // Returns a dense f32 view [d0, d1, d2] that starts at value `offset`. REQUIRES: it lies within
  // values().
  TensorView At(std::int64_t offset, std::int64_t d0, std::int64_t d1, std::int64_t d2 = 1) const {
    return TensorView::Dense(buffer_->data() + offset * static_cast<std::int64_t>(sizeof(float)),
                             DType::kF32, d0, d1, d2);
  }

 private:
  std::unique_ptr<Buffer> buffer_;
};

// Rounds `values` up, so that the next view starts on a cache line.
constexpr std::int64_t AlignedValues(std::int64_t values) {
  return (values + 15) / 16 * 16;
}

}  // namespace kvcache
