#include "backend/cpu/numa/on_nodes.h"

#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace kvcache::cpu {
namespace {

// Returns "2 memory nodes with 16 + 16 threads", and what the system refuses.
std::string Describe(const ThreadPool& pool, NumaSystem& system) {
  std::string text = StrCat(pool.nodes(), " memory nodes with ");
  for (int node = 0; node < pool.nodes(); ++node) {
    text += StrCat(node == 0 ? "" : " + ", pool.threads_of(node));
  }
  text += " threads";
  if (const std::string error = pool.pin_error(); !error.empty()) {
    text += StrCat("; threads are not pinned to them (", error, ")");
  }
  int merged = 0;
  for (int node = 0; node < pool.nodes(); ++node) merged += pool.is_merged(node) ? 1 : 0;
  if (merged > 0) {
    text += StrCat("; weights of files stay where the system has them on ", merged,
                   " of the nodes, which are several of the machine's each");
  }
  if (merged == pool.nodes()) return text;
  if (const Status moved = TryToMovePages(system, pool.node_id(0)); !moved.ok()) {
    text += StrCat("; weights of files stay where the system has them (", moved.message(), ")");
  }
  return text;
}

}  // namespace

std::unique_ptr<CpuBackend> MakeOnNodes(int threads, std::span<const MemoryNode> nodes,
                                        NumaSystem& system) {
  const std::vector<NodeThreads> spread =
      nodes.size() < 2 ? std::vector<NodeThreads>() : SpreadThreads(nodes, threads);
  if (spread.size() < 2) return std::make_unique<CpuBackend>(threads);
  if (system.HasPolicy()) {
    auto backend = std::make_unique<CpuBackend>(threads);
    backend->set_placement("the memory policy of the process decides on memory nodes");
    return backend;
  }
  auto backend = std::make_unique<CpuBackend>(spread, system);
  backend->set_placement(Describe(backend->pool(), system));
  return backend;
}

}  // namespace kvcache::cpu
