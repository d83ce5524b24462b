#include "backend/cuda/shim/kernel_registry.h"

namespace kvcache::cuda::shim {
namespace {

constinit const KernelEntry* first_kernel = nullptr;

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
  for (const KernelEntry* kernel = first_kernel; kernel != nullptr; kernel = kernel->next) {
    if (kernel->name == name) return kernel;
  }
  return nullptr;
}

}  // namespace kvcache::cuda::shim
