// Memory of the pages of snapshots. Freed memory is kept for the next pages, up to a limit: memory
// from the system costs a page fault and zeroing for every huge page, which takes as long as half of
// the copy that follows.
//
// Memory that is kept counts against nobody's snapshots; spare_bytes() reports it.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache/snapshot.h"
#include "kvcache/status.h"
#include "platform/aligned_buffer.h"

namespace kvcache {

class PageMemory {
 public:
  // Smaller memory is the heap's, which keeps it for reuse itself.
  static constexpr std::size_t kMinKept = std::size_t{2} << 20;
  static constexpr std::size_t kMaxKept = 128;  // pieces of memory

  // May throw std::bad_alloc.
  PageMemory() { spare_.reserve(kMaxKept); }

  // Returns memory with any contents. Gives all spare memory back to the system before it fails.
  // Errors: kOutOfMemory with the number of bytes.
  Result<AlignedBuffer> Take(std::size_t size_bytes);
  // Keeps the memory, and frees what was kept longest while there is more than the limit.
  void Give(AlignedBuffer memory);

  std::int64_t spare_bytes() const { return spare_bytes_; }
  // Frees what is above the limit, now and after each Give.
  void Limit(std::int64_t bytes);

 private:
  AlignedBuffer Remove(std::size_t index);

  std::vector<AlignedBuffer> spare_;  // what was kept longest comes first
  std::int64_t spare_bytes_ = 0;
  std::int64_t limit_ = kDefaultSpareBytes;
};

}  // namespace kvcache
