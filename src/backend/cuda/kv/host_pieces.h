// Pieces of host memory that lie one after another on a device.
//
// Thread safety: const calls from any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/cuda/device/device.h"

namespace kvcache::cuda {

class HostPieces {
 public:
  // Appends a piece. The memory outlives the copies.
  void Add(std::span<std::byte> piece) {
    if (piece.empty()) return;
    pieces_.push_back({bytes_, piece});
    bytes_ += piece.size();
  }
  std::size_t bytes() const { return bytes_; }

  // Copies all pieces to, or from, `at` of the device. Errors: the device's.
  Status CopyIn(Device& device, std::byte* at) const;
  Status CopyOut(Device& device, const std::byte* at) const;

 private:
  struct Piece {
    std::size_t begin;  // on the device, from `at` on
    std::span<std::byte> memory;
  };

  // Calls body(bytes of a piece, their offset in the range) for what lies in bytes [begin, begin + size).
  template <class Body>
  void ForEach(std::size_t begin, std::size_t size, const Body& body) const;

  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
};

}  // namespace kvcache::cuda
