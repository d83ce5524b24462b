// Lets the tests of the CUDA backend run on the first real device in the place of the shim. Linked into
// cuda_device_tests instead of the shim.
//
// Thread safety: none.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "backend/cuda/device/driver_device.h"
#include "backend/cuda/entry/program_kernels.h"
#include "backend/cuda/shim/shim_device.h"

namespace kvcache::cuda {
namespace {

// The program's only device: opening one takes long, and tests open many.
Device& TheDevice() {
  static const std::unique_ptr<Device> device = [] {
    static const auto driver = OpenDriver();
    auto made = driver.ok() ? MakeDriverDevice(*driver, ProgramKernels(), 0, 4)
                            : Result<std::unique_ptr<Device>>(driver.status());
    if (!made.ok()) {
      std::fprintf(stderr, "no device: %s\n", made.status().message().c_str());
      std::exit(3);
    }
    return std::move(made).value();
  }();
  return *device;
}

class SharedDevice final : public Device {
 public:
  const DeviceInfo& info() const override { return device_.info(); }
  std::size_t FreeBytes() const override { return device_.FreeBytes(); }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    return device_.Allocate(size_bytes);
  }
  Status CopyIn(std::span<const std::byte> from, std::byte* to) override {
    return device_.CopyIn(from, to);
  }
  Status CopyOut(const std::byte* from, std::span<std::byte> to) override {
    return device_.CopyOut(from, to);
  }
  Status CopyInUnits(const LinkUnits& units, const FillUnit& fill, std::byte* to) override {
    return device_.CopyInUnits(units, fill, to);
  }
  Status CopyOutUnits(const std::byte* from, const LinkUnits& units,
                      const TakeUnit& take) override {
    return device_.CopyOutUnits(from, units, take);
  }
  Status Copy(const std::byte* from, std::byte* to, std::size_t bytes) override {
    return device_.Copy(from, to, bytes);
  }
  Status Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                std::span<const std::byte> args) override {
    return device_.Launch(kernel, grid, shared_bytes, args);
  }
  Status Synchronize() override { return device_.Synchronize(); }

 private:
  Device& device_ = TheDevice();
};

}  // namespace

std::unique_ptr<Device> MakeShimDevice(const ShimOptions& /*options*/) {
  return std::make_unique<SharedDevice>();
}

}  // namespace kvcache::cuda
