// An invented machine with memory nodes, for tests.
//
// Thread safety: all calls from any number of threads; settings before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "platform/numa/memory_nodes.h"
#include "platform/numa/numa_system.h"

namespace kvcache::testing {

// Threads are where they were pinned, or where the test says. Nothing is pinned or moved in truth.
class InventedNuma final : public NumaSystem {
 public:
  struct Move {
    const std::byte* begin;
    std::size_t size_bytes;
    int node;
  };

  bool HasPolicy() override { return has_policy; }
  Status Pin(std::span<const int> processors) override {
    if (!pin_error.empty()) return {StatusCode::kIo, pin_error};
    Here() = processors.front();
    pins.fetch_add(1);
    return Status::Ok();
  }
  int CurrentProcessor() override { return Here(); }
  Status MovePages(std::span<const std::byte> bytes, int node) override {
    if (!move_error.empty()) return {StatusCode::kIo, move_error};
    const std::scoped_lock lock(mutex_);
    moves_.push_back({bytes.data(), bytes.size(), node});
    return Status::Ok();
  }

  // The processor of the calling thread; 0 until it is pinned.
  static int& Here() {
    static thread_local int processor = 0;
    return processor;
  }
  std::vector<Move> moves() {
    const std::scoped_lock lock(mutex_);
    return moves_;
  }

  bool has_policy = false;
  std::string pin_error{};   // empty: threads are pinned
  std::string move_error{};  // empty: pages are moved
  std::atomic<int> pins{0};

 private:
  std::mutex mutex_;
  std::vector<Move> moves_;
};

// Returns `nodes` nodes with `threads` threads in all, as even as possible, each with `threads` processors from
// node × 100 on.
inline std::vector<NodeThreads> InventedNodes(int nodes, int threads) {
  std::vector<MemoryNode> found;
  for (int node = 0; node < nodes; ++node) {
    MemoryNode each{.id = node, .processors = {}, .cores = threads};
    for (int i = 0; i < threads; ++i) each.processors.push_back(node * 100 + i);
    found.push_back(std::move(each));
  }
  return SpreadThreads(found, threads);
}

// Returns the node that InventedNodes gave a processor.
inline int NodeOfInvented(int processor) {
  return processor / 100;
}

}  // namespace kvcache::testing
