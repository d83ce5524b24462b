#include "platform/huge_pages.h"

#include <sys/mman.h>

namespace kvcache {

void AskForHugePages([[maybe_unused]] std::span<const std::byte> bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_HUGEPAGE);
#endif
}

}  // namespace kvcache
