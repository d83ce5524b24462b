// Finds how much memory this process may still take.
//
// Source: proc(5) (MemAvailable), Documentation/admin-guide/cgroup-v2.rst (memory.max,
// memory.current, memory.stat).
//
// Thread safety: all functions may be called at the same time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvcache {

// Returns the bytes of memory that are available without swapping: the system's, and within the
// limits of the process's control groups of version 2. Reads /proc and /sys in the folder `root`.
// None: the system does not tell.
std::optional<std::int64_t> AvailableMemory(const std::string& root = "");

}  // namespace kvcache
