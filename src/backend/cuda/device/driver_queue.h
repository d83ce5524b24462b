// A context and a stream of a device, the driver's errors on it, and copies through page-locked memory: what
// DriverDevice is made of.
//
// The page-locked memory is a ring of slots. The host's threads fill a slot while the link carries those before it, and
// empty one while the link fills those behind it. Small copies to the device share a slot. A copy from the device waits
// for its own slots, and so for all that the queue did before.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "backend/cuda/device/device.h"
#include "backend/cuda/device/driver.h"
#include "kvcache/status.h"

namespace kvcache::cuda {

class DriverQueue {
 public:
  // The bytes of a slot, and so of the largest unit of a copy.
  static constexpr std::size_t kSlotBytes = std::size_t{8} << 20;

  // `name` is the device's, for messages; `pool` carries copies.
  DriverQueue(const Driver& driver, std::string name, ThreadPool& pool)
      : driver_(driver), name_(std::move(name)), pool_(pool) {}
  ~DriverQueue();
  DriverQueue(const DriverQueue&) = delete;
  DriverQueue& operator=(const DriverQueue&) = delete;

  // REQUIRES: StartDriver. Called once, before the others.
  Status Open(int device);

  const Driver& driver() const { return driver_; }
  void* stream() const { return stream_; }

  // Makes the context that of this thread. Returns the loss of the device, if it happened.
  Status Enter();
  // Turns a result of the driver into a status; `what` says what was done. Any error but a refusal (memory,
  // arguments, resources) means that the device is lost, and every later call says so.
  Status Check(int result, const char* what);

  Status CopyIn(std::span<const std::byte> from, DriverAddress to);
  Status CopyOut(DriverAddress from, std::span<std::byte> to);
  // REQUIRES: a unit fits in a slot.
  Status CopyInUnits(const LinkUnits& units, const FillUnit& fill, DriverAddress to);
  Status CopyOutUnits(DriverAddress from, const LinkUnits& units, const TakeUnit& take);
  Status Synchronize();

 private:
  static constexpr std::size_t kSlots = 4;

  // Page-locked memory; an event marks its last copy.
  struct Slot {
    std::byte* memory = nullptr;
    void* event = nullptr;
    std::size_t used = 0;
    bool pending = false;  // the event was recorded, and nobody has waited for it
  };

  // Marks the end of a slot's copies.
  Status Mark(Slot& slot);
  Status WaitFor(Slot& slot);
  // Returns the slot that the next `bytes` bytes to the device go through, with room for them.
  Result<Slot*> TakeRoom(std::size_t bytes);
  // All copies are done: all slots are free.
  void FreeAll();

  const Driver& driver_;
  std::string name_;
  ThreadPool& pool_;
  Status lost_;
  int device_ = -1;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::byte* memory_ = nullptr;  // of all slots
  Slot slots_[kSlots];
  std::size_t current_ = 0;
};

}  // namespace kvcache::cuda
