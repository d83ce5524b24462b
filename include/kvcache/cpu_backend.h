// The CPU: kernels for AVX-512 VNNI down to portable SIMD, chosen at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvcache/backend.h"

namespace kvcache {

struct CpuOptions {
  int threads = 0;  // 0: one per core that this process may use
};

// REQUIRES: threads >= 0. Returns kInvalidArgument for a thread count that is not sensible, and
// kOutOfMemory where the system refuses so many; with 0 it makes do with what it gets.
Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options = {});

// A backend that accepts the weights that MakeCpuBackend accepts and keeps nothing of them but
// their shapes: it tells whether a model can be loaded and what its cache takes, in no time.
// REQUIRES: its weights are not multiplied with.
std::unique_ptr<Backend> MakeShapeBackend();

// The instruction set that the kernels run with here, such as "AVX3_DL" (AVX-512 with VNNI).
std::string CpuTargetName();

// All that the kernels could run with here, best first: values for KVCACHE_CPU_TARGET.
std::vector<std::string> CpuTargetNames();

}  // namespace kvcache
