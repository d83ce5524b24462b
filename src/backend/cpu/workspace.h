// Memory for the inside of one operation. Grows to the largest request and stays, so that a
// steady state allocates nothing.
//
// Thread safety: Reserve from the calling thread only; tasks share what it returned.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kvcache/status.h"
#include "platform/aligned_buffer.h"

namespace kvcache::cpu {

class Workspace {
 public:
  // At least `size_bytes` bytes, 64-byte aligned, contents undefined, valid until the next
  // call. One operation calls it once and cuts the result itself.
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
