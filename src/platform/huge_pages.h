// Says whether mapped memory should be in huge pages. Wishes: refusal changes speed alone.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <span>

namespace kvcache {

// `bytes` begins at a page.
void AskForHugePages(std::span<const std::byte> bytes);

// Asks for small pages around `at`, where memory of two nodes meets: a huge page there would lie on one of them. Does
// nothing if `at` is where huge pages begin.
void AskForSmallPagesAround(const std::byte* at);

}  // namespace kvcache
