// Helpers for the tests of linear layers: a device with the arrays of a product, beside the CPU backend.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/testing.h"
#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/shim/shim_device.h"
#include "kvcache/cpu_backend.h"

namespace kvcache::cuda::linear_testing {

// What an output holds that nobody has written.
inline constexpr float kUnwritten = -12345.0f;

// The device of the tests as one of four processors, so that every device gets the same kernels, and their names.
class NamedLaunches final : public Device {
 public:
  explicit NamedLaunches(std::unique_ptr<Device> device)
      : device_(std::move(device)), info_(device_->info()) {
    info_.processors = 4;
  }

  std::vector<std::string> names;  // of the kernels that were launched

  ThreadPool& pool() override { return device_->pool(); }
  const DeviceInfo& info() const override { return info_; }
  std::size_t FreeBytes() const override { return device_->FreeBytes(); }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    return device_->Allocate(size_bytes);
  }
  void Mark(std::byte* at, std::size_t bytes, MemoryUse use) override {
    device_->Mark(at, bytes, use);
  }
  Status CopyIn(std::span<const std::byte> from, std::byte* to) override {
    return device_->CopyIn(from, to);
  }
  Status CopyOut(const std::byte* from, std::span<std::byte> to) override {
    return device_->CopyOut(from, to);
  }
  Status CopyInUnits(const LinkUnits& units, const FillUnit& fill, std::byte* to) override {
    return device_->CopyInUnits(units, fill, to);
  }
  Status CopyOutUnits(const std::byte* from, const LinkUnits& units,
                      const TakeUnit& take) override {
    return device_->CopyOutUnits(from, units, take);
  }
  Status Copy(const std::byte* from, std::byte* to, std::size_t bytes) override {
    return device_->Copy(from, to, bytes);
  }
  Status Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                std::span<const std::byte> args) override {
    names.emplace_back(kernel.name);
    return device_->Launch(kernel, grid, shared_bytes, args);
  }
  Status Synchronize() override { return device_->Synchronize(); }

 private:
  std::unique_ptr<Device> device_;
  DeviceInfo info_;
};

class Bench {
 public:
  explicit Bench(std::uint64_t seed)
      : device_(std::make_unique<NamedLaunches>(MakeShimDevice({.seed = seed}))),
        memory_(*device_),
        cpu_(std::move(MakeCpuBackend({.threads = 1})).value()) {}

  NamedLaunches& device() { return *device_; }
  CallMemory& memory() { return memory_; }
  Backend& cpu() { return *cpu_; }

  // Returns the device's address of a copy of `values`.
  template <class T>
  T* Upload(std::span<const T> values) {
    buffers_.push_back(std::move(device_->Allocate(values.size_bytes())).value());
    EXPECT_TRUE(device_->CopyIn(std::as_bytes(values), buffers_.back()->data()).ok());
    return reinterpret_cast<T*>(buffers_.back()->data());
  }
  template <class T>
  T* Upload(const std::vector<T>& values) {
    return Upload(std::span<const T>(values));
  }
  std::vector<float> Download(const float* from, std::size_t count) {
    std::vector<float> values(count);
    const Status status = device_->CopyOut(reinterpret_cast<const std::byte*>(from),
                                           std::as_writable_bytes(std::span(values)));
    EXPECT_TRUE(status.ok()) << status.message();
    return values;
  }
  void FreeUploads() { buffers_.clear(); }

 private:
  std::unique_ptr<NamedLaunches> device_;
  CallMemory memory_;
  std::unique_ptr<Backend> cpu_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

inline TensorView Matrix(const void* data, std::int64_t width, std::int64_t columns) {
  return TensorView::Dense(data, DType::kF32, width, columns);
}

// Returns the index of the first value whose bits differ, or -1.
inline std::int64_t FirstDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return static_cast<std::int64_t>(i);
  }
  return -1;
}

}  // namespace kvcache::cuda::linear_testing
