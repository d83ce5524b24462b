#include "backend/cuda/shim/mapping.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace kvcache::cuda::shim {
namespace {

constexpr std::size_t kPageBytes = 4096;

}  // namespace

Mapping::Mapping(std::size_t bytes) : size_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes) {
  void* const at = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    std::perror("shim: mmap");
    std::abort();
  }
  data_ = static_cast<std::byte*>(at);
}

Mapping::~Mapping() {
  munmap(data_, size_);
}

void Mapping::Drop(std::size_t offset, std::size_t bytes) {
  const std::size_t first = (offset + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::size_t end = (offset + bytes) / kPageBytes * kPageBytes;
  if (first < end) madvise(data_ + first, end - first, MADV_DONTNEED);
}

}  // namespace kvcache::cuda::shim
