// A device that keeps bytes in host memory and runs no kernel: it counts what a backend asks of it, and shows what the
// host's part of a pass takes. Values that kernels would have made are zeros.
//
// Thread safety: as Device.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"

namespace kvcache::cuda {

class CountingDevice final : public Device {
 public:
  struct Counts {
    int launches = 0;
    int copies_in = 0;
    int copies_out = 0;
    std::map<std::string, int> kernels;  // by name, if names are kept
  };

  // The sizes of an H100.
  CountingDevice() {
    info_.name = "counting";
    info_.capability = 90;
    info_.processors = 132;
    info_.memory_bytes = std::size_t{80} << 30;
    info_.shared_bytes = std::size_t{227} << 10;
  }

  Counts counts;
  bool keeps_names = true;
  bool fails = false;  // every copy to the device

  const DeviceInfo& info() const override { return info_; }
  std::size_t FreeBytes() const override { return info_.memory_bytes; }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    return std::unique_ptr<Buffer>(std::make_unique<HostBuffer>(size_bytes));
  }
  Status CopyIn(std::span<const std::byte> from, std::byte* to) override {
    if (fails) return {StatusCode::kIo, "the copy fails, as the test asks"};
    ++counts.copies_in;
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    return Status::Ok();
  }
  Status CopyOut(const std::byte* from, std::span<std::byte> to) override {
    ++counts.copies_out;
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
    return Status::Ok();
  }
  Status Copy(const std::byte* from, std::byte* to, std::size_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);
    return Status::Ok();
  }
  Status Launch(const Kernel& kernel, const Grid&, std::size_t,
                std::span<const std::byte>) override {
    ++counts.launches;
    if (keeps_names) ++counts.kernels[kernel.name];
    return Status::Ok();
  }
  Status Synchronize() override { return Status::Ok(); }

 private:
  class HostBuffer final : public Buffer {
   public:
    explicit HostBuffer(std::size_t size) : bytes_(size + 256) {}
    std::byte* data() override {
      const auto at = reinterpret_cast<std::uintptr_t>(bytes_.data());
      return bytes_.data() + (256 - at % 256);
    }
    std::size_t size_bytes() const override { return bytes_.size() - 256; }

   private:
    std::vector<std::byte> bytes_;
  };

  DeviceInfo info_;
};

}  // namespace kvcache::cuda
