// Which memory node a weight's rows belong to: its threads write them when they are packed, and multiply them.
//
// Panels of 16 rows, in the order of memory, are cut into a part for each node. So a matrix is cut by rows, a stack
// mostly between matrices, and either has few pages with rows of two nodes:
//
//   node        0             | 1
//   panels      0 1 2 3 4 5 6 | 7 8 9 10 11 12 13
//   matrices    0       1         2        3          of 3.5 panels each
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/backend.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

struct RowsOfMatrix {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Returns the rows of a matrix that belong to a node of the pool: whole panels, or none.
RowsOfMatrix RowsOfNode(const ThreadPool& pool, const LinearWeight& weight, std::int64_t matrix,
                        int node);

// A matrix or a stack in memory: panels, or rows as a model's file has them.
struct WeightBytes {
  std::span<const std::byte> bytes;  // of all matrices
  std::int64_t row_bytes = 0;        // of a row, or a sixteenth of a panel
};

// Returns the part of a weight that belongs to a node.
std::span<const std::byte> BytesOfNode(const ThreadPool& pool, const LinearWeight& weight,
                                       const WeightBytes& in, int node);

// Reads a weight of a mapped file, and moves its pages to the nodes that their rows belong to, as far as the system
// moves them (NumaSystem::MovePages): a call for each node's part of all matrices, since each call cuts the mapping,
// and waits for all processors. The threads of each node read its part before: pages that come from the disk are there
// at once, and the system moves only pages that the process has seen. REQUIRES: the pool has several nodes.
void PlaceOnNodes(ThreadPool& pool, const LinearWeight& weight, const WeightBytes& in);

}  // namespace kvcache::cpu
