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
  // On a machine with several memory nodes, threads are spread over them, and weights and cells lie where the threads
  // are that read them (docs/design/numa.md). The results have the same bits.
  bool uses_numa = true;
};

// Returns a backend with its thread pool. Errors: kInvalidArgument for a thread count that is too
// large, kOutOfMemory if the system refuses that many threads. With threads = 0 it uses as many as
// the system grants. REQUIRES: threads >= 0.
Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options = {});

// Returns what a backend of MakeCpuBackend does about memory nodes, in a few words ("2 memory nodes with 16 + 16
// threads"), with what the system refused. Empty, if the machine has one node, and for other backends.
std::string CpuPlacement(const Backend& backend);

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
