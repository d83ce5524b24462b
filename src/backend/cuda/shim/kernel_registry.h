// The kernels of this program, by name: KVCACHE_KERNEL makes a KernelEntry of each before main begins.
//
// Thread safety: read-only once main has begun. Objects are static.
#pragma once

#include <cstddef>
#include <string_view>

namespace kvcache::cuda::shim {

struct KernelEntry {
  using Run = void (*)(const void* args);

  // REQUIRES: the object lives until the program ends.
  KernelEntry(const char* kernel_name, int block_threads, std::size_t size_of_args, Run body);

  const char* name;
  int threads;
  std::size_t args_bytes;
  Run run;  // runs the kernel as one thread
  const KernelEntry* next;
};

// Returns the kernel, or null.
const KernelEntry* FindKernel(std::string_view name);

}  // namespace kvcache::cuda::shim
