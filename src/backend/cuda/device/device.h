// A device that runs kernels: a GPU behind the driver (driver_device.h), or the shim of the tests. All
// calls work on one queue, in order. Launch and CopyIn may return before the work is done; CopyOut and
// Synchronize wait for all that came before. A pool of the host's threads works for the device: it packs
// weights, and carries what crosses the link.
//
// Thread safety: one thread at a time. Ownership: memory of a device is freed before the device.
// Errors: kOutOfMemory names the bytes that were asked for and those that are free; kIo says that
// the device is lost, and every later call says so too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kvcache/kv_backend.h"
#include "kvcache/status.h"
#include "platform/thread_pool.h"

namespace kvcache::cuda {

struct DeviceInfo {
  std::string name;    // as the driver says it
  int capability = 0;  // major × 10 + minor: 90 for an H100
  int processors = 0;  // streaming multiprocessors
  std::size_t memory_bytes = 0;
  std::size_t shared_bytes = 0;  // the largest shared memory of a block
};

// What a kernel does, for those that can be part of a joined one (joined/joined_device.h).
enum class KernelPart : std::uint8_t {
  kOther,
  kAdd,
  kGate,
  kNorm,
  kRotate,
  kStore,
  kQuantize16,
  kQuantize32,
  kQuantize256,
};

// A kernel, by the name in KVCACHE_KERNEL. Objects are constants: a device remembers their addresses.
struct Kernel {
  const char* name;
  int threads;  // of a block, as in KVCACHE_KERNEL
  KernelPart part = KernelPart::kOther;
};

struct Grid {
  std::int64_t x = 1;  // below 2^31
  std::int64_t y = 1;  // below 65,536
  std::int64_t z = 1;  // below 65,536
};

// What a part of an allocation is used for.
enum class MemoryUse : std::uint8_t {
  kNone,       // nothing: nobody may touch it
  kUndefined,  // it is about to be written, and holds nothing that is defined
};

// Bytes that cross the link in units of one size, of which the last may be smaller.
struct LinkUnits {
  std::size_t bytes = 0;
  std::size_t unit_bytes = 1;
};
// Write, or read, unit `unit`; called on any thread of the device's pool, several at once. They do not throw.
using FillUnit = std::function<void(std::size_t unit, std::span<std::byte> to)>;
using TakeUnit = std::function<void(std::size_t unit, std::span<const std::byte> from)>;

class Device {
 public:
  // REQUIRES: threads >= 1.
  explicit Device(int threads = 1) : pool_(threads) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual ThreadPool& pool() { return pool_; }

  virtual const DeviceInfo& info() const = 0;
  virtual std::size_t FreeBytes() const = 0;

  // Returns zeroed memory of the device, 256-byte aligned.
  virtual Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) = 0;

  // Says what bytes of an allocation are used for from now on, to devices that check kernels. `at` is 256-byte
  // aligned.
  virtual void Mark(std::byte* /*at*/, std::size_t /*bytes*/, MemoryUse /*use*/) {}

  // The host's memory may be used again when CopyIn returns.
  virtual Status CopyIn(std::span<const std::byte> from, std::byte* to) = 0;
  virtual Status CopyOut(const std::byte* from, std::span<std::byte> to) = 0;
  // The same for bytes that `fill` makes, or that `take` uses, unit by unit. Errors: kOutOfMemory of the host too.
  virtual Status CopyInUnits(const LinkUnits& units, const FillUnit& fill, std::byte* to);
  virtual Status CopyOutUnits(const std::byte* from, const LinkUnits& units, const TakeUnit& take);
  virtual Status Copy(const std::byte* from, std::byte* to, std::size_t bytes) = 0;

  // Starts `kernel` with grid.x × grid.y × grid.z blocks. `args` is copied. An empty grid is no work.
  virtual Status Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                        std::span<const std::byte> args) = 0;
  virtual Status Synchronize() = 0;

 private:
  ThreadPool pool_;
};

// A good size of units of bytes that are copied as they are: a thread copies one in some 10 µs.
inline constexpr std::size_t kCopyUnitBytes = std::size_t{128} << 10;

// Calls body(unit, its bytes) for each unit of `memory`, which begins with unit `first`: on the pool for a large copy, for
// a small one on this thread, since to wake others takes longer.
template <class Byte, class Body>
void ForEachUnit(ThreadPool& pool, const LinkUnits& units, std::span<Byte> memory,
                 std::size_t first, const Body& body) {
  constexpr std::size_t kLargeBytes = std::size_t{2} << 20;
  const std::size_t count = (memory.size() + units.unit_bytes - 1) / units.unit_bytes;
  const auto run = [&](std::int64_t i, int) {
    const std::size_t begin = static_cast<std::size_t>(i) * units.unit_bytes;
    body(first + static_cast<std::size_t>(i),
         memory.subspan(begin, std::min(units.unit_bytes, memory.size() - begin)));
  };
  const auto tasks = static_cast<std::int64_t>(count);
  if (units.bytes >= kLargeBytes) return pool.ParallelFor(tasks, run);
  for (std::int64_t i = 0; i < tasks; ++i) run(i, 0);
}

template <class Args>
Status Launch(Device& device, const Kernel& kernel, const Grid& grid, const Args& args,
              std::size_t shared_bytes = 0) {
  return device.Launch(kernel, grid, shared_bytes, std::as_bytes(std::span(&args, 1)));
}

}  // namespace kvcache::cuda
