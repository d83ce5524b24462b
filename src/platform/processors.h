// Finds how many processors and cores this process may use, and how much of their time.
//
// The default number of threads is one per physical core: two threads of one core share the units
// that the kernels keep busy. It is no more than the CPU quota of the process's control groups,
// because a system that has given out the quota of a period stops all threads until the next one.
//
// Source: cgroups(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux (cpu.max,
// cpu.cfs_quota_us), Documentation/ABI/stable/sysfs-devices-system-cpu (topology/).
//
// Thread safety: all functions may be called at the same time.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvcache {

struct ProcessorLimits {
  int processors = 1;           // logical processors in the affinity mask
  int cores = 1;                // physical cores that they belong to
  std::optional<double> quota;  // processors' worth of time; none: unlimited

  // Returns the number of threads that may run all the time: the processors within the quota,
  // rounded down, at least 1.
  int AvailableProcessors() const;
  // Returns the same with one thread per core.
  int DefaultThreads() const;
};

// Returns the numbers of the logical processors in this process's affinity mask; empty if the
// system does not tell.
std::vector<int> AllowedProcessors();

// Returns the number of physical cores that these logical processors belong to.
int CountCores(std::span<const int> processors, const std::string& root = "");

// Returns the limits of a process that may run on the logical processors `allowed`. Reads /proc and
// /sys in the folder `root`. A file that is missing or unreadable sets no limit: a processor of
// unknown topology is a core of its own.
ProcessorLimits FindProcessorLimits(std::span<const int> allowed, const std::string& root = "");

// Returns the limits of this process, read again in every call.
ProcessorLimits FindProcessorLimits();

}  // namespace kvcache
