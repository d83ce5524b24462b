// Which memory node the keys and values of a cell are on: its threads write them first, and attention reads them there.
//
// The heads of a layer are cut into a part for each node, since a head's history is one piece of memory that a task
// reads. A layer with fewer heads than nodes is cut by cells instead, by turns.
//
//   8 heads, 2 nodes    heads 0 … 3 | heads 4 … 7
//   1 head, 2 nodes     cells 0 … 1023 | 1024 … 2047 | back to the first node: 2048 …
//
// Thread safety: free functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kvcache/kv.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// A task of attention rarely has more cells, and in all types so many fill whole pages.
inline constexpr std::int64_t kCellsOfTurn = 1024;

// Returns whether heads, not cells, decide about the node.
inline bool HasNodeForHeads(const ThreadPool& pool, const LayerKv& layer) {
  return layer.shape.kv_heads >= pool.nodes();
}

inline int NodeOfHead(const ThreadPool& pool, const LayerKv& layer, int kv_head) {
  int node = 0;
  while (kv_head >= pool.PartBegin(layer.shape.kv_heads, node + 1)) ++node;
  return node;
}

inline int NodeOfCells(const ThreadPool& pool, const LayerKv& layer, int kv_head,
                       std::int64_t cell) {
  if (HasNodeForHeads(pool, layer)) return NodeOfHead(pool, layer, kv_head);
  return static_cast<int>((cell / kCellsOfTurn + kv_head) % pool.nodes());
}

// Sorts tasks by node, with the order of a node's tasks as it was: `order` gets the numbers of the tasks [0, order
// size), and the result says where each node's tasks end. `node_of(task)` is called twice for each.
template <typename NodeOf>
ThreadPool::Ends SortByNode(const ThreadPool& pool, std::span<std::int32_t> order,
                            const NodeOf& node_of) {
  ThreadPool::Ends ends{};
  const auto tasks = static_cast<std::int32_t>(order.size());
  for (std::int32_t task = 0; task < tasks; ++task) {
    ++ends[static_cast<std::size_t>(node_of(task))];
  }
  ThreadPool::Ends next{};
  std::int64_t before = 0;
  for (std::size_t node = 0; node < static_cast<std::size_t>(pool.nodes()); ++node) {
    next[node] = before;
    before += ends[node];
    ends[node] = before;
  }
  for (std::int32_t task = 0; task < tasks; ++task) {
    order[static_cast<std::size_t>(next[static_cast<std::size_t>(node_of(task))]++)] = task;
  }
  return ends;
}

}  // namespace kvcache::cpu
