// Memory of repacked weights: pieces of large blocks, so that all of it is in huge pages. A weight
// with memory of its own has its last part, or all of it if it is small, in pages of 4 KiB. A
// thread reads those at a third of the speed.
//
//   block   | weight | weight | weight | …free |
//
// A block is returned to the system when the last weight in it is destroyed.
//
// Thread safety: one call of Make at a time; pieces can be destroyed by any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "kvcache/status.h"
#include "platform/aligned_buffer.h"

namespace kvcache::cpu {

// A part of a block, or memory of its own.
class WeightPiece {
 public:
  WeightPiece(std::shared_ptr<AlignedBuffer> block, std::size_t offset, std::size_t size_bytes)
      : block_(std::move(block)), data_(block_->data() + offset), size_bytes_(size_bytes) {}

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  // Returns the bytes, which stay as long as the result.
  std::shared_ptr<const std::byte> Share() const { return {block_, data_}; }

 private:
  std::shared_ptr<AlignedBuffer> block_;
  std::byte* data_;
  std::size_t size_bytes_;
};

class WeightMemory {
 public:
  // Returns `size_bytes` zeroed bytes, 64-byte aligned; kOutOfMemory on failure. They stay valid
  // without this object.
  Result<WeightPiece> Make(std::size_t size_bytes);

 private:
  std::weak_ptr<AlignedBuffer> block_;  // the newest; its free part is [used_, its size)
  std::size_t used_ = 0;
};

}  // namespace kvcache::cpu
