// Zeroed memory, aligned for any vector load, in huge pages where it is large enough to matter.
//
// Thread safety: as a std::unique_ptr's.
#pragma once

#include <cstddef>
#include <utility>

#include "kvcache/status.h"

namespace kvcache {

class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignmentBytes = 64;

  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer() { Release(); }

  // `size_bytes` zeroed bytes, or kOutOfMemory with the number. From 2 MiB on the memory is the
  // system's own, aligned for huge pages and asking for them; its pages appear on first touch.
  static Result<AlignedBuffer> Make(std::size_t size_bytes);

  // The same in memory of the system's small pages, of any size: each appears when it is written.
  static Result<AlignedBuffer> MakePaged(std::size_t size_bytes);

  // Gives the memory behind the first `size_bytes` bytes back, as far as the system can take it.
  // REQUIRES: size_bytes <= size_bytes().
  void Shrink(std::size_t size_bytes);

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  AlignedBuffer(std::byte* data, std::size_t size_bytes, std::size_t mapped_bytes)
      : data_(data), size_bytes_(size_bytes), mapped_bytes_(mapped_bytes) {}
  void Release();

  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::size_t mapped_bytes_ = 0;  // 0: from the heap
};

}  // namespace kvcache
