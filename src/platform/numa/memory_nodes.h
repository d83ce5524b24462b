// Finds the memory nodes of this machine that the process may use, and spreads threads over them.
//
// A node is memory with the processors that reach it fastest. Most machines have one; servers with several sockets
// have more. docs/design/numa.md says what kvcache does with them.
//
// Source: Documentation/ABI/stable/sysfs-devices-node of Linux (online, cpulist, distance, meminfo), proc(5)
// (Mems_allowed_list of status).
//
// Thread safety: all functions may be called at the same time.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

// Larger machines are seen as at most this many nodes, each with the processors of neighbors.
inline constexpr int kMaxMemoryNodes = 16;

struct MemoryNode {
  int id = 0;                   // the system's
  std::vector<int> processors;  // those that the process may use, ascending; at least one
  int cores = 0;                // physical cores that they belong to
  bool is_merged =
      false;  // of a larger machine: several nodes of the system, of which `id` is the first
};

// Returns the nodes with memory that the process may take, and with processors of `allowed`, in ascending order; empty
// if the system does not tell. Nodes that are offline do not count. Memory without processors is nobody's: the system
// takes it when other nodes are full. Processors whose own node has no memory for the process belong to the node with
// the least distance that has; processors of no node, to the first. Reads /proc and /sys in the folder `root`.
std::vector<MemoryNode> FindMemoryNodes(std::span<const int> allowed, const std::string& root = "");

// The threads of a node.
struct NodeThreads {
  int node = 0;  // the system's number
  std::vector<int> processors;
  int threads = 0;  // at least one
  bool is_merged = false;
};

// Divides `threads` in proportion to cores, or to processors if there are fewer cores than threads. Nodes without a
// thread are left out. REQUIRES: threads >= 1.
std::vector<NodeThreads> SpreadThreads(std::span<const MemoryNode> nodes, int threads);

// Returns the numbers of a list as the system writes it ("0-3,8"); none: it is no such list. An empty list is one.
std::optional<std::vector<int>> ParseNumberList(std::string_view text);

}  // namespace kvcache
