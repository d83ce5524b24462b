// Finds how much memory this process may still take.
//
// Source: proc(5) (MemAvailable); of Linux, Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.high,
// memory.current, memory.stat) and cgroup-v1/memory.rst (memory.limit_in_bytes, memory.usage_in_bytes, memory.memsw.*,
// memory.stat, memory.use_hierarchy).
//
// Thread safety: all functions may be called at the same time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvcache {

// Returns the bytes of memory that are available without swapping: the system's, and within the
// limits of the process's control groups of versions 1 and 2 and of the groups that contain them. Pages
// of files count as available. Reads /proc and /sys in the folder `root`. A file that is missing or
// unreadable sets no limit. None: the system does not tell.
std::optional<std::int64_t> AvailableMemory(const std::string& root = "");

// Pages of mapped files that the process reads again and again, such as weights. The system counts them as available,
// since it could read them again; AvailableMemory does not, while this exists.
class NeededFilePages {
 public:
  explicit NeededFilePages(std::int64_t bytes);
  ~NeededFilePages();
  NeededFilePages(const NeededFilePages&) = delete;
  NeededFilePages& operator=(const NeededFilePages&) = delete;

 private:
  std::int64_t bytes_;
};

}  // namespace kvcache
