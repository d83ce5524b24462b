// Helpers for the tests of linear layers: a device with the arrays of a product, beside the CPU backend.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
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

class Bench {
 public:
  explicit Bench(std::uint64_t seed)
      : device_(MakeShimDevice({.seed = seed})),
        memory_(*device_),
        cpu_(std::move(MakeCpuBackend({.threads = 1})).value()) {}

  Device& device() { return *device_; }
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
  std::unique_ptr<Device> device_;
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
