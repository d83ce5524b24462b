#include "backend/cuda/shim/shim_device.h"

#include <cstring>
#include <string>
#include <utility>

#include "backend/cuda/shim/block_runner.h"
#include "backend/cuda/shim/device_memory.h"
#include "backend/cuda/shim/kernel_registry.h"

namespace kvcache::cuda {
namespace {

class ShimBuffer final : public Buffer {
 public:
  ShimBuffer(std::size_t size, shim::DeviceMemory& memory)
      : data_(memory.Allocate(size)), size_(size), memory_(memory) {}
  ~ShimBuffer() override { memory_.Free(data_); }
  std::byte* data() override { return data_; }
  std::size_t size_bytes() const override { return size_; }

 private:
  std::byte* data_;
  std::size_t size_;
  shim::DeviceMemory& memory_;
};

class ShimDevice final : public Device {
 public:
  explicit ShimDevice(const ShimOptions& options)
      : seed_(options.seed),
        checks_(options.checks == AccessChecks::kOn),
        memory_(options.shared_bytes) {
    info_.name = "shim";
    info_.capability = 80;
    info_.processors = 4;
    info_.memory_bytes = options.memory_bytes;
    info_.shared_bytes = options.shared_bytes;
  }

  const DeviceInfo& info() const override { return info_; }
  std::size_t FreeBytes() const override { return info_.memory_bytes - memory_.used_bytes(); }

  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    if (size_bytes > FreeBytes()) {
      return Status(StatusCode::kOutOfMemory, "shim: " + std::to_string(size_bytes) +
                                                  " bytes do not fit in " +
                                                  std::to_string(FreeBytes()) + " free bytes");
    }
    return std::unique_ptr<Buffer>(std::make_unique<ShimBuffer>(size_bytes, memory_));
  }

  void Mark(std::byte* at, std::size_t bytes, MemoryUse use) override {
    if (checks_) memory_.Mark(at, bytes, use);
  }

  Status CopyIn(std::span<const std::byte> from, std::byte* to) override;
  Status CopyOut(const std::byte* from, std::span<std::byte> to) override;
  Status Copy(const std::byte* from, std::byte* to, std::size_t bytes) override;
  Status Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                std::span<const std::byte> args) override;
  Status Synchronize() override { return Status::Ok(); }

 private:
  Status CheckRange(const char* call, const std::byte* at, std::size_t bytes) const;

  DeviceInfo info_;
  std::uint64_t seed_;
  bool checks_;
  shim::DeviceMemory memory_;
};

Status ShimDevice::CheckRange(const char* call, const std::byte* at, std::size_t bytes) const {
  if (memory_.Holds(at, bytes)) return Status::Ok();
  const std::string where = memory_.Describe(reinterpret_cast<std::uintptr_t>(at));
  return Status(StatusCode::kInternal,
                std::string(call) + ": " + std::to_string(bytes) + " bytes at " +
                    (where.empty() ? "an address of the host" : where) + ": out of bounds");
}

Status ShimDevice::CopyIn(std::span<const std::byte> from, std::byte* to) {
  KVCACHE_RETURN_IF_ERROR(CheckRange("CopyIn", to, from.size()));
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  if (checks_) memory_.SetWritten(to, from.size());
  return Status::Ok();
}

// The host may copy bytes that nobody has written, such as those between others: they are all ones.
Status ShimDevice::CopyOut(const std::byte* from, std::span<std::byte> to) {
  KVCACHE_RETURN_IF_ERROR(CheckRange("CopyOut", from, to.size()));
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  return Status::Ok();
}

Status ShimDevice::Copy(const std::byte* from, std::byte* to, std::size_t bytes) {
  KVCACHE_RETURN_IF_ERROR(CheckRange("Copy", from, bytes));
  KVCACHE_RETURN_IF_ERROR(CheckRange("Copy", to, bytes));
  if (bytes > 0) std::memmove(to, from, bytes);
  if (checks_) memory_.CopyWritten(from, to, bytes);
  return Status::Ok();
}

Status Invalid(const Kernel& kernel, const std::string& text) {
  return Status(StatusCode::kInternal, "kernel '" + std::string(kernel.name) + "': " + text);
}

Status CheckGrid(const Kernel& kernel, const Grid& grid) {
  if (grid.x < 0 || grid.x >= std::int64_t{1} << 31 || grid.y < 0 || grid.y >= 65536 ||
      grid.z < 0 || grid.z >= 65536) {
    return Invalid(kernel, "the grid is " + std::to_string(grid.x) + " x " +
                               std::to_string(grid.y) + " x " + std::to_string(grid.z) +
                               " blocks; the limits are 2^31 - 1, 65535 and 65535");
  }
  return Status::Ok();
}

Status ShimDevice::Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                          std::span<const std::byte> args) {
  const shim::KernelEntry* const entry = shim::FindKernel(kernel.name);
  if (entry == nullptr) return Invalid(kernel, "no kernel has this name");
  if (entry->threads != kernel.threads) {
    return Invalid(kernel, "the launch has " + std::to_string(kernel.threads) +
                               " threads a block; the kernel has " +
                               std::to_string(entry->threads));
  }
  if (entry->args_bytes != args.size()) {
    return Invalid(kernel, "the launch has " + std::to_string(args.size()) +
                               " bytes of arguments; the kernel has " +
                               std::to_string(entry->args_bytes));
  }
  if (shared_bytes > info_.shared_bytes) {
    return Invalid(kernel, std::to_string(shared_bytes) +
                               " bytes of shared memory; the device has " +
                               std::to_string(info_.shared_bytes));
  }
  KVCACHE_RETURN_IF_ERROR(CheckGrid(kernel, grid));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return Status::Ok();
  alignas(64) std::byte copy[4096];
  std::memcpy(copy, args.data(), args.size());
  seed_ = seed_ * 6364136223846793005ULL + 1442695040888963407ULL;
  return shim::BlockRunner::Get().Run({entry, grid, shared_bytes, copy, &memory_, checks_, seed_});
}

}  // namespace

std::unique_ptr<Device> MakeShimDevice(const ShimOptions& options) {
  return std::make_unique<ShimDevice>(options);
}

}  // namespace kvcache::cuda
