// A context and a stream of a device, the driver's errors on it, and copies through page-locked memory: what
// DriverDevice is made of.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "backend/cuda/device/driver.h"
#include "kvcache/status.h"

namespace kvcache::cuda {

class DriverQueue {
 public:
  // `name` is the device's, for messages.
  DriverQueue(const Driver& driver, std::string name) : driver_(driver), name_(std::move(name)) {}
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
  Status Synchronize();

 private:
  static constexpr std::size_t kHalfBytes = std::size_t{4} << 20;
  static constexpr int kHalves = 2;

  // Page-locked memory whose last copy an event marks.
  struct Half {
    std::byte* memory = nullptr;
    void* event = nullptr;
    std::size_t used = 0;
    bool pending = false;  // the event was recorded, and nobody has waited for it
  };

  // Returns the half that the next `bytes` bytes of a copy go through, with room for them.
  Result<Half*> TakeHalf(std::size_t bytes);
  Status WaitFor(Half& half);

  const Driver& driver_;
  std::string name_;
  Status lost_;
  int device_ = -1;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  Half halves_[kHalves];
  int current_ = 0;
};

}  // namespace kvcache::cuda
