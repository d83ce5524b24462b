#include "platform/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "base/errors.h"

namespace kvcache {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
// A multiple of every page size in use.
constexpr std::size_t kPageBytes = std::size_t{64} << 10;

std::size_t RoundUp(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

Status NoMemory(std::size_t size_bytes) {
  return OutOfMemory("cannot allocate " + std::to_string(size_bytes) + " bytes of memory");
}

// Anonymous memory whose address is a multiple of the huge page size: maps one huge page more
// and gives both ends back. A last part that fills no huge page stays in small ones, and so
// takes no more memory than it is long. Null when the system refuses.
std::byte* MapHuge(std::size_t mapped_bytes) {
  const std::size_t span = mapped_bytes + kHugePageBytes;
  void* const raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(raw);
  const std::size_t address = reinterpret_cast<std::uintptr_t>(raw);
  const std::size_t head = RoundUp(address, kHugePageBytes) - address;
  if (head > 0) munmap(begin, head);
  if (head < kHugePageBytes) munmap(begin + head + mapped_bytes, kHugePageBytes - head);
#if defined(MADV_HUGEPAGE)
  // Wishes: refusal changes speed alone.
  const std::size_t huge = mapped_bytes / kHugePageBytes * kHugePageBytes;
  madvise(begin + head, huge, MADV_HUGEPAGE);
  if (huge < mapped_bytes) madvise(begin + head + huge, mapped_bytes - huge, MADV_NOHUGEPAGE);
#endif
  return begin + head;
}

}  // namespace

Result<AlignedBuffer> AlignedBuffer::Make(std::size_t size_bytes) {
  if (size_bytes > std::numeric_limits<std::size_t>::max() / 2) return NoMemory(size_bytes);
  if (size_bytes >= kHugePageBytes) {
    const std::size_t mapped_bytes = RoundUp(size_bytes, kPageBytes);
    std::byte* const data = MapHuge(mapped_bytes);
    if (data == nullptr) return NoMemory(size_bytes);
    return AlignedBuffer(data, size_bytes, mapped_bytes);
  }
  const std::size_t heap_bytes = RoundUp(size_bytes + (size_bytes == 0), kAlignmentBytes);
  void* const data = std::aligned_alloc(kAlignmentBytes, heap_bytes);
  if (data == nullptr) return NoMemory(size_bytes);
  std::memset(data, 0, heap_bytes);
  return AlignedBuffer(static_cast<std::byte*>(data), size_bytes, 0);
}

Result<AlignedBuffer> AlignedBuffer::MakePaged(std::size_t size_bytes) {
  if (size_bytes > std::numeric_limits<std::size_t>::max() / 2) return NoMemory(size_bytes);
  const std::size_t mapped_bytes = RoundUp(size_bytes + (size_bytes == 0), kPageBytes);
  std::byte* const data = MapHuge(mapped_bytes);
  if (data == nullptr) return NoMemory(size_bytes);
#if defined(MADV_NOHUGEPAGE)
  madvise(data, mapped_bytes, MADV_NOHUGEPAGE);
#endif
  return AlignedBuffer(data, size_bytes, mapped_bytes);
}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  return *this;
}

void AlignedBuffer::Shrink(std::size_t size_bytes) {
  size_bytes_ = size_bytes;
  if (mapped_bytes_ == 0) return;
  const std::size_t needed = RoundUp(size_bytes + (size_bytes == 0), kPageBytes);
  if (needed < mapped_bytes_) munmap(data_ + needed, mapped_bytes_ - needed);
  mapped_bytes_ = needed;
}

void AlignedBuffer::Release() {
  if (mapped_bytes_ > 0) {
    munmap(data_, mapped_bytes_);
  } else {
    std::free(data_);
  }
  data_ = nullptr;
}

}  // namespace kvcache
