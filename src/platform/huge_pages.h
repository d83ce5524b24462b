// Asks for mapped memory in huge pages. A wish: refusal changes speed alone.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <span>

namespace kvcache {

// `bytes` begins at a page.
void AskForHugePages(std::span<const std::byte> bytes);

}  // namespace kvcache
