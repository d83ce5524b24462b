// A device that joins launches: it holds one back until it sees the next, and where a kernel does the work of both, it
// starts that one instead. What it joins, in the order of launches:
//
//   x += y, a norm of x, the quantisation of the norm's result      (with or without the first or the last)
//   gate = activation(gate) × up, the quantisation of gate
//   the rotation of queries and keys (either first), the store of keys and values
//
// All memory has the values that the single launches leave, and callers see no difference: any other call first starts
// what is held back. An error of that start is the error of the call.
//
// Thread safety: as Device.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "backend/cuda/device/device.h"

namespace kvcache::cuda {

class JoinedDevice final : public Device {
 public:
  // REQUIRES: `device` is not null.
  explicit JoinedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  ThreadPool& pool() override { return device_->pool(); }
  const DeviceInfo& info() const override { return device_->info(); }
  std::size_t FreeBytes() const override { return device_->FreeBytes(); }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override;
  void Mark(std::byte* at, std::size_t bytes, MemoryUse use) override {
    device_->Mark(at, bytes, use);
  }
  Status CopyIn(std::span<const std::byte> from, std::byte* to) override;
  Status CopyOut(const std::byte* from, std::span<std::byte> to) override;
  Status CopyInUnits(const LinkUnits& units, const FillUnit& fill, std::byte* to) override;
  Status CopyOutUnits(const std::byte* from, const LinkUnits& units, const TakeUnit& take) override;
  Status Copy(const std::byte* from, std::byte* to, std::size_t bytes) override;
  Status Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                std::span<const std::byte> args) override;
  Status Synchronize() override;

  // Starts what is held back before memory is freed. The next call that returns a status returns its error, and does nothing.
  void BeforeFree();

  // A launch that is held back.
  struct Held {
    static constexpr std::size_t kMaxArgs = 128;
    const Kernel* kernel = nullptr;
    Grid grid;
    std::size_t shared_bytes = 0;
    std::size_t args_bytes = 0;
    alignas(16) std::array<std::byte, kMaxArgs> args{};

    // REQUIRES: the kernel has arguments of this type.
    template <class Args>
    Args As() const {
      static_assert(sizeof(Args) <= kMaxArgs);
      Args value;
      std::memcpy(&value, args.data(), sizeof(Args));
      return value;
    }
  };

 private:
  static constexpr int kMost = 2;  // launches that are held at once

  // Starts what is held back.
  Status Start();
  // Returns the error that BeforeFree has left, once. What was held back then is dropped.
  Status TakeFailure();
  void Hold(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
            std::span<const std::byte> args);
  // Returns whether the launch may wait behind those that are held.
  bool Continues(const Kernel& kernel, std::span<const std::byte> args) const;
  // Starts a kernel that does what is held and this launch, if there is one.
  Result<bool> Join(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                    std::span<const std::byte> args);

  std::unique_ptr<Device> device_;
  std::array<Held, kMost> held_;
  int count_ = 0;
  Status failed_;  // of BeforeFree
};

}  // namespace kvcache::cuda
