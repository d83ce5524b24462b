// The calls of the system that place threads and memory on nodes. Tests have systems of their own, which invent nodes
// and refuse calls.
//
// mbind(2) and get_mempolicy(2) are called by number: libnuma would be a dependency for two calls, and reads /sys by
// itself, which tests could not invent.
//
// Thread safety: all calls from any number of threads.
#pragma once

#include <cstddef>
#include <span>

#include "kvcache/status.h"

namespace kvcache {

class NumaSystem {
 public:
  virtual ~NumaSystem() = default;

  // Returns whether this process was started with a memory policy (numactl): memory is placed by it then.
  virtual bool HasPolicy() = 0;
  // Lets the calling thread run on these processors only. Errors, which change nothing: kIo with the system's words.
  virtual Status Pin(std::span<const int> processors) = 0;
  // Returns the number of the processor that the calling thread is on now; -1: unknown.
  virtual int CurrentProcessor() = 0;
  // Moves the whole pages within `bytes` that are in memory, and that no other process has mapped, to the node. Errors:
  // kIo with the system's words; some pages may have moved.
  virtual Status MovePages(std::span<const std::byte> bytes, int node) = 0;
};

// The machine's. It lives as long as the program.
NumaSystem& MachineNuma();

// Returns the error of moving a page to where it is already: whether this process may move pages at all.
Status TryToMovePages(NumaSystem& system, int node);

}  // namespace kvcache
