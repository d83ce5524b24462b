// Makes a CPU backend for a machine with memory nodes.
//
// Thread safety: free functions.
#pragma once

#include <memory>
#include <span>

#include "backend/cpu/cpu_backend.h"
#include "platform/numa/memory_nodes.h"
#include "platform/numa/numa_system.h"

namespace kvcache::cpu {

// Returns a backend whose threads are spread over the nodes, and whose placement() says so. Its threads are on no node,
// as without this function, if there are fewer than two nodes, or two threads, or if the process was started with a
// memory policy, which placement() says. `system` outlives the backend. REQUIRES: threads >= 1.
std::unique_ptr<CpuBackend> MakeOnNodes(int threads, std::span<const MemoryNode> nodes,
                                        NumaSystem& system);

}  // namespace kvcache::cpu
