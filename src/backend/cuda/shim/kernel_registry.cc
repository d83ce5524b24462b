#include "backend/cuda/shim/kernel_registry.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "backend/cuda/shim/report.h"

namespace kvcache::cuda::shim {
namespace {

constinit const KernelEntry* first_kernel = nullptr;

// The compiler may put functions that a kernel calls before it.
constexpr std::uintptr_t kTextBeforeKernels = std::uintptr_t{1} << 19;

std::unordered_map<std::string_view, const KernelEntry*> AllKernels() {
  std::unordered_map<std::string_view, const KernelEntry*> kernels;
  std::uintptr_t lowest = UINTPTR_MAX;
  for (const KernelEntry* kernel = first_kernel; kernel != nullptr; kernel = kernel->next) {
    kernels.emplace(kernel->name, kernel);
    lowest = std::min(lowest, reinterpret_cast<std::uintptr_t>(kernel->run));
  }
  kernel_text = lowest - std::min(lowest, kTextBeforeKernels);
  return kernels;
}

}  // namespace

KernelEntry::KernelEntry(const char* kernel_name, int block_threads, std::size_t size_of_args,
                         Run body)
    : name(kernel_name),
      threads(block_threads),
      args_bytes(size_of_args),
      run(body),
      next(first_kernel) {
  first_kernel = this;
}

const KernelEntry* FindKernel(std::string_view name) {
  static const std::unordered_map<std::string_view, const KernelEntry*> kernels = AllKernels();
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : found->second;
}

}  // namespace kvcache::cuda::shim
