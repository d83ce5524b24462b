// Counts the locks that a program takes: every pthread_mutex_lock, what std::mutex calls among it,
// and read or write lock, on any thread. Waiting on an atomic is none.
//
// A program that calls Locks has these functions replaced. Thread safety: counting is.
#pragma once

#include <cstdint>
#include <optional>

namespace kvcache::testing {

// Locks so far; nothing where they cannot be counted (a thread sanitizer has functions of its own,
// another C library may).
std::optional<std::int64_t> Locks();

}  // namespace kvcache::testing
