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

// A matrix in memory: panels, or rows as a model's file has them.
struct MatrixBytes {
  std::span<const std::byte> bytes;
  std::int64_t row_bytes = 0;  // of a row, or a sixteenth of a panel
};

// Returns the part of a matrix that belongs to a node.
std::span<const std::byte> BytesOfNode(const ThreadPool& pool, const LinearWeight& weight,
                                       std::int64_t matrix, const MatrixBytes& in, int node);

// Moves the pages of a matrix to the nodes that their rows belong to, as far as they are in memory and the system moves
// them (NumaSystem::MovePages). REQUIRES: the pool has several nodes.
void MoveToNodes(const ThreadPool& pool, const LinearWeight& weight, std::int64_t matrix,
                 const MatrixBytes& in);

// The same for a matrix that nobody has read yet: the threads of each node touch its part before, so that pages which
// come from the disk are there at once.
void ReadOnNodes(ThreadPool& pool, const LinearWeight& weight, std::int64_t matrix,
                 const MatrixBytes& in);

}  // namespace kvcache::cpu
