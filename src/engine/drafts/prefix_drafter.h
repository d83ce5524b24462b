// A drafter of one request that looks up what followed the last tokens before: in its own text, and in all
// that the prefix cache holds of the same salt. The longest match wins.
//
// Thread safety: that of the prefix cache.
#pragma once

#include <cstdint>
#include <memory>

#include "kvcache/drafter.h"
#include "kvcache/prefix_cache.h"

namespace kvcache {

// `prefixes` must outlive the drafter, and find continuations (PrefixOptions). `rates` are what is known
// of earlier drafters of this kind. Throws std::bad_alloc.
std::unique_ptr<Drafter> MakePrefixDrafter(const PrefixCache& prefixes, std::uint64_t salt,
                                           const DraftRates& rates);

}  // namespace kvcache
