// A driver for tests: memory and kernels of the shim behind the functions of driver.h. Work is done when somebody
// waits for it, and not before, as a slow device would; so a caller that uses memory too early is found.
//
// Thread safety: none; there is one fake at a time, since the functions have no state of their own.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "backend/cuda/device/driver.h"
#include "backend/cuda/device/driver_device.h"

namespace kvcache::cuda {

class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  Driver driver() const;
  // Two images; the kernels are in the second one.
  KernelImages kernels() const;

  // Makes the function, by its exported name, return `result` at its n-th call from now and all later ones.
  void Fail(const std::string& function, int result, int n = 1);
  void Repair() { failures_.clear(); }

  int version = 13000;
  int devices = 1;
  int capability = 90;
  int target = 90;  // that the kernels are compiled for
  std::size_t memory_bytes = std::size_t{1} << 28;

  // Objects of the driver that are alive: memory, streams, events, modules, contexts.
  int alive() const { return alive_; }
  int launches() const { return launches_; }
  // Of the launches, those that may start before the one before them has ended.
  int overlaps() const { return overlaps_; }
  // The shared memory of the last launch, and the most that a function was allowed.
  std::size_t shared_bytes() const { return shared_bytes_; }
  std::size_t allowed_shared_bytes() const { return allowed_shared_bytes_; }
  // Questions for a kernel to a module that does not have it.
  int not_found() const { return not_found_; }
  // How often the host has waited for an event or the stream.
  int waits() const { return waits_; }
  // Functions that may run with as much shared memory as there is.
  int wholly_shared() const { return wholly_shared_; }

 private:
  friend struct FakeFunctions;
  struct State;
  struct Failure {
    int result = 0;
    int calls = 0;  // until it happens
  };

  std::unique_ptr<State> state_;
  std::map<std::string, Failure> failures_;
  int alive_ = 0;
  int launches_ = 0;
  int overlaps_ = 0;
  int waits_ = 0;
  int wholly_shared_ = 0;
  int not_found_ = 0;
  std::size_t shared_bytes_ = 0;
  std::size_t allowed_shared_bytes_ = 0;
};

}  // namespace kvcache::cuda
