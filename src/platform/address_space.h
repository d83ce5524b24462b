// How much address space this process may still take.
//
// Source: getrlimit(2) (RLIMIT_AS), proc(5) (statm).
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>

namespace kvcache {

// Returns the bytes that may still be mapped, as `ulimit -v` says. None: there is no limit.
std::optional<std::int64_t> AddressSpaceLeft();

}  // namespace kvcache
