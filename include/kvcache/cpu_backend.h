// The CPU backend. It selects kernels at run time, from portable SIMD to AVX-512 VNNI.
//
// Thread safety: the functions may be called from any thread; for backends see kv_backend.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvcache/backend.h"

namespace kvcache {

struct CpuOptions {
  int threads = 0;  // 0: one per core that this process may use
};

// Returns a backend with its thread pool. Errors: kInvalidArgument for a thread count that is too
// large, kOutOfMemory if the system refuses that many threads. With threads = 0 it uses as many as
// the system grants. REQUIRES: threads >= 0.
Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options = {});

// Returns a backend that accepts the same weights as the CPU backend and keeps only their shapes.
// It tells, without reading weights, whether a model can be loaded and how large its cache is.
// REQUIRES: Linear and LinearGroups are not called.
std::unique_ptr<Backend> MakeShapeBackend();

// Returns the instruction set of the kernels on this machine, such as "AVX3_DL" (AVX-512 with
// VNNI).
std::string CpuTargetName();

// Returns all instruction sets that the kernels can use on this machine, best first. Each is a
// valid value of the environment variable KVCACHE_CPU_TARGET.
std::vector<std::string> CpuTargetNames();

}  // namespace kvcache
