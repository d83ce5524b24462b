// Temporary memory of one operation at a time. It grows to the largest size ever reserved and keeps
// it, so that a steady state allocates nothing.
//
// Thread safety: call Reserve from the calling thread only; its tasks share the result.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kvcache/status.h"
#include "platform/aligned_buffer.h"

namespace kvcache::cpu {

class Workspace {
 public:
  // Returns at least `size_bytes` bytes, 64-byte aligned, with undefined contents, valid until the
  // next call; kOutOfMemory on failure. An operation calls it once and divides the result itself.
  Result<std::byte*> Reserve(std::size_t size_bytes) {
    if (size_bytes > buffer_.size_bytes()) {
      const std::size_t grown =
          std::max(size_bytes, buffer_.size_bytes() + buffer_.size_bytes() / 2);
      buffer_ = AlignedBuffer();  // nobody needs the old contents: never hold both
      KVCACHE_ASSIGN_OR_RETURN(buffer_, AlignedBuffer::Make(grown));
    }
    return buffer_.data();
  }

  std::size_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  AlignedBuffer buffer_;
};

}  // namespace kvcache::cpu
