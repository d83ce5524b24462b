#include "platform/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace kvcache {

void AskForHugePages([[maybe_unused]] std::span<const std::byte> bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_HUGEPAGE);
#endif
}

void AskForSmallPagesAround([[maybe_unused]] const std::byte* at) {
#if defined(MADV_NOHUGEPAGE)
  constexpr std::uintptr_t kHugePageBytes = std::uintptr_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uintptr_t page = address / kHugePageBytes * kHugePageBytes;
  if (page != address) madvise(reinterpret_cast<void*>(page), kHugePageBytes, MADV_NOHUGEPAGE);
#endif
}

}  // namespace kvcache
