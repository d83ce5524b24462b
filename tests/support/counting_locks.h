// Counts the locks that a program takes, on any thread: mutexes (std::mutex too) and read-write
// locks. Waiting on an atomic does not count.
//
// A program that calls LockCount links replacements of the pthread functions.
//
// Thread safety: safe.
#pragma once

#include <cstdint>
#include <optional>

namespace kvcache::testing {

// Returns the number of locks taken so far, or nothing if they cannot be counted: under the thread
// sanitizer, which replaces these functions itself, and with C libraries other than glibc.
std::optional<std::int64_t> LockCount();

}  // namespace kvcache::testing
