#include "backend/cpu/linear/weight_nodes.h"

#include <algorithm>
#include <array>

#include "backend/cpu/common/block_layout.h"

namespace kvcache::cpu {
RowsOfMatrix RowsOfNode(const ThreadPool& pool, const LinearWeight& weight, std::int64_t matrix,
                        int node) {
  if (pool.nodes() == 1) return {0, weight.outputs()};
  const std::int64_t panels = block::Panels(weight.outputs());
  const std::int64_t all = panels * weight.matrices();
  const auto row = [&](int of) {
    const std::int64_t panel = pool.PartBegin(all, of) - matrix * panels;
    return std::min(std::clamp<std::int64_t>(panel, 0, panels) * block::kPanelRows,
                    weight.outputs());
  };
  return {row(node), row(node + 1)};
}

std::span<const std::byte> BytesOfNode(const ThreadPool& pool, const LinearWeight& weight,
                                       const WeightBytes& in, int node) {
  const std::int64_t panels = block::Panels(weight.outputs());
  const std::int64_t all = panels * weight.matrices();
  const auto matrix_bytes = static_cast<std::int64_t>(in.bytes.size()) / weight.matrices();
  const auto begin_of = [&](int of) {
    const std::int64_t panel = pool.PartBegin(all, of);
    const std::int64_t row = panel % panels * block::kPanelRows;
    return static_cast<std::size_t>(panel / panels * matrix_bytes + row * in.row_bytes);
  };
  return in.bytes.subspan(begin_of(node), begin_of(node + 1) - begin_of(node));
}

void PlaceOnNodes(ThreadPool& pool, const LinearWeight& weight, const WeightBytes& in) {
  constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
  constexpr std::size_t kMinPageBytes = 4096;
  ThreadPool::Ends ends{};
  std::array<std::span<const std::byte>, kMaxMemoryNodes> parts;
  std::int64_t pieces = 0;
  for (int node = 0; node < pool.nodes(); ++node) {
    const auto index = static_cast<std::size_t>(node);
    parts[index] = BytesOfNode(pool, weight, in, node);
    pieces += static_cast<std::int64_t>((parts[index].size() + kPieceBytes - 1) / kPieceBytes);
    ends[index] = pieces;
  }
  const auto touch = [&](std::int64_t task, int /*thread*/) {
    const auto node = static_cast<std::size_t>(
        std::upper_bound(ends.begin(), ends.begin() + pool.nodes(), task) - ends.begin());
    const std::int64_t first = node == 0 ? 0 : ends[node - 1];
    const std::size_t begin = static_cast<std::size_t>(task - first) * kPieceBytes;
    const std::size_t end = std::min(begin + kPieceBytes, parts[node].size());
    for (std::size_t i = begin; i < end; i += kMinPageBytes) {
      (void)*reinterpret_cast<const volatile std::byte*>(parts[node].data() + i);
    }
  };
  pool.ParallelFor(ends, touch, TakenBy::kHomeNode);
  // The backend says once whether the system moves pages (MakeOnNodes), so an error here is no news. A merged node has
  // memory of several nodes, none of which is nearest to all its threads.
  for (int node = 0; node < pool.nodes(); ++node) {
    const std::span<const std::byte> part = parts[static_cast<std::size_t>(node)];
    if (part.empty() || pool.is_merged(node)) continue;
    (void)pool.system().MovePages(part, pool.node_id(node));
  }
}

}  // namespace kvcache::cpu
