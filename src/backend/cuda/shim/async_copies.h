// Copies in the background: they land when their thread waits for them, and not before.
//
// Thread safety: each host thread has an object of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache::cuda::shim {

class AsyncCopies {
 public:
  explicit AsyncCopies(int threads) : queues_(threads) {}

  void BeginBlock(int threads);
  void Add(int thread, void* shared, const void* global);
  void Commit(int thread) { ++queues_[thread].groups; }
  // Lands the copies of `thread` that are not in its last `pending` groups; `land(copy)` copies one.
  struct Copy {
    void* shared;
    const void* global;
    std::uint32_t group;
  };
  template <class Land>
  void Wait(int thread, std::uint32_t pending, Land land) {
    Queue& queue = queues_[thread];
    while (queue.landed < queue.copies.size() &&
           queue.copies[queue.landed].group + pending < queue.groups) {
      land(queue.copies[queue.landed++]);
    }
    if (queue.landed == queue.copies.size()) {
      queue.copies.clear();
      queue.landed = 0;
    }
  }

 private:
  struct Queue {
    std::vector<Copy> copies;
    std::size_t landed = 0;
    std::uint32_t groups = 0;  // that are closed
  };
  std::vector<Queue> queues_;
};

}  // namespace kvcache::cuda::shim
