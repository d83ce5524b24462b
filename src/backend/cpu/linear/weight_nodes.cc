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
                                       std::int64_t matrix, const MatrixBytes& in, int node) {
  const auto at = [&](std::int64_t row) {
    return row == weight.outputs() ? in.bytes.size() : static_cast<std::size_t>(row * in.row_bytes);
  };
  const RowsOfMatrix rows = RowsOfNode(pool, weight, matrix, node);
  return in.bytes.subspan(at(rows.begin), at(rows.end) - at(rows.begin));
}

// The pool says once whether the system moves pages (MakeOnNodes), so an error here is no news.
void MoveToNodes(const ThreadPool& pool, const LinearWeight& weight, std::int64_t matrix,
                 const MatrixBytes& in) {
  for (int node = 0; node < pool.nodes(); ++node) {
    const std::span<const std::byte> part = BytesOfNode(pool, weight, matrix, in, node);
    if (!part.empty()) (void)pool.system().MovePages(part, pool.node_id(node));
  }
}

void ReadOnNodes(ThreadPool& pool, const LinearWeight& weight, std::int64_t matrix,
                 const MatrixBytes& in) {
  constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
  constexpr std::size_t kMinPageBytes = 4096;
  ThreadPool::Ends ends{};
  std::array<std::span<const std::byte>, kMaxMemoryNodes> parts;
  std::int64_t pieces = 0;
  for (int node = 0; node < pool.nodes(); ++node) {
    const auto index = static_cast<std::size_t>(node);
    parts[index] = BytesOfNode(pool, weight, matrix, in, node);
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
  MoveToNodes(pool, weight, matrix, in);
}

}  // namespace kvcache::cpu
