#include "cache/cells/page_memory.h"

#include <utility>

namespace kvcache {

AlignedBuffer PageMemory::Remove(std::size_t index) {
  AlignedBuffer memory = std::move(spare_[index]);
  spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(index));
  spare_bytes_ -= static_cast<std::int64_t>(memory.size_bytes());
  return memory;
}

// Takes the smallest piece that is large enough, and gives its rest back to the system. A piece of
// more than twice the size stays for a larger page.
Result<AlignedBuffer> PageMemory::Take(std::size_t size_bytes) {
  std::size_t best = spare_.size();
  for (std::size_t i = 0; i < spare_.size() && size_bytes >= kMinKept; ++i) {
    const std::size_t size = spare_[i].size_bytes();
    if (size < size_bytes || size > 2 * size_bytes) continue;
    if (best == spare_.size() || size < spare_[best].size_bytes()) best = i;
  }
  if (best < spare_.size()) {
    AlignedBuffer memory = Remove(best);
    memory.Shrink(size_bytes);
    return memory;
  }
  auto memory = AlignedBuffer::Make(size_bytes);
  if (memory.ok() || spare_.empty()) return memory;
  while (!spare_.empty()) Remove(0);
  return AlignedBuffer::Make(size_bytes);
}

void PageMemory::Give(AlignedBuffer memory) {
  const auto bytes = static_cast<std::int64_t>(memory.size_bytes());
  if (memory.size_bytes() < kMinKept || bytes > limit_) return;
  if (spare_.size() == kMaxKept) Remove(0);
  while (spare_bytes_ + bytes > limit_) Remove(0);
  spare_bytes_ += bytes;
  spare_.push_back(std::move(memory));
}

void PageMemory::Limit(std::int64_t bytes) {
  limit_ = bytes;
  while (spare_bytes_ > limit_ && !spare_.empty()) Remove(0);
}

}  // namespace kvcache
