// Tensors that lie both in host memory, for the CPU backend, and on the shim's device, and the comparison of
// what both made of them.
//
// Thread safety: none.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/shim/shim_device.h"
#include "kvcache/cpu_backend.h"

namespace kvcache::cuda::testing {

// The same tensor in both memories.
struct Mirror {
  TensorView host;
  TensorView device;
};

enum class Content : std::uint8_t {
  kNumbers,  // between -1.7 and 1.7
  kSpecial,  // also infinities, NaNs, zeros of both signs, large and subnormal numbers
};

// A device and the CPU backend with the same tensors. The seed chooses the values and the order of threads.
class BothBackends {
 public:
  explicit BothBackends(int seed)
      : random_(static_cast<unsigned>(seed)),
        device_(MakeShimDevice({.seed = static_cast<std::uint64_t>(seed)})),
        memory_(*device_),
        cpu_(std::move(MakeCpuBackend({.threads = 1})).value()) {}

  Device& device() { return *device_; }
  CallMemory& memory() {
    memory_.BeginCall();
    return memory_;
  }
  Backend& cpu() { return *cpu_; }
  std::mt19937& random() { return random_; }
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // A tensor with new values. `gap` floats follow each row, `offset` floats precede the first.
  Mirror Tensor(std::array<std::int64_t, 3> dims, Content content = Content::kNumbers,
                std::int64_t gap = 0, std::int64_t offset = 0) {
    const std::int64_t row = dims[0] + gap;
    const std::int64_t count = offset + row * dims[1] * dims[2];
    All& all = tensors_.emplace_back();
    all.values.resize(static_cast<std::size_t>(count) + 1);
    for (float& value : all.values) value = DrawValue(content);
    all.buffer = device_->Allocate(all.values.size() * sizeof(float)).value();
    EXPECT_TRUE(device_->CopyIn(std::as_bytes(std::span(all.values)), all.buffer->data()).ok());
    TensorView view =
        TensorView::Dense(all.values.data() + offset, DType::kF32, dims[0], dims[1], dims[2]);
    if (gap != 0) {
      view.stride_bytes[1] = row * 4;
      view.stride_bytes[2] = row * dims[1] * 4;
      view.stride_bytes[3] = view.stride_bytes[2] * dims[2];
    }
    TensorView device = view;
    device.data = all.buffer->data() + offset * 4;
    return {view, device};
  }

  // Sets a dense tensor's values in both memories.
  void Set(const Mirror& mirror, std::span<const float> values) {
    std::memcpy(mirror.host.data, values.data(), values.size_bytes());
    EXPECT_TRUE(device_->CopyIn(std::as_bytes(values), mirror.device.data).ok());
  }

  // Values in host memory, as both backends take them.
  std::vector<float> Values(std::int64_t count, Content content = Content::kNumbers) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = DrawValue(content);
    return values;
  }

  // Compares all tensors, the gaps included: equal bits, or both NaN.
  void ExpectSame(const std::string& what) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      std::vector<float> on_device(tensors_[i].values.size());
      ASSERT_TRUE(
          device_->CopyOut(tensors_[i].buffer->data(), std::as_writable_bytes(std::span(on_device)))
              .ok());
      ExpectSameValues(tensors_[i].values, on_device, what + ", tensor " + std::to_string(i));
    }
  }
  void Forget() { tensors_.clear(); }

  static void ExpectSameValues(std::span<const float> cpu, std::span<const float> cuda,
                               const std::string& what) {
    ASSERT_EQ(cpu.size(), cuda.size());
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      if (std::isnan(cpu[i]) && std::isnan(cuda[i])) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(cpu[i]), std::bit_cast<std::uint32_t>(cuda[i]))
          << what << ", value " << i << ": " << cpu[i] << " and " << cuda[i];
    }
  }

 private:
  struct All {
    std::vector<float> values;
    std::unique_ptr<Buffer> buffer;
  };

  float DrawValue(Content content) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSpecials[] = {kInfinity, -kInfinity, std::nanf(""), 0.0f,   -0.0f,
                                   1e-41f,    -1e-41f,    3e38f,         -3e38f, 88.5f,
                                   -88.5f,    100.0f,     -100.0f,       20.0f,  -20.0f};
    if (content == Content::kSpecial && Draw(0, 2) == 0) {
      return kSpecials[Draw(0, static_cast<int>(std::size(kSpecials)) - 1)];
    }
    return std::uniform_real_distribution<float>(-1.7f, 1.7f)(random_);
  }

  std::mt19937 random_;
  std::unique_ptr<Device> device_;
  CallMemory memory_;
  std::unique_ptr<Backend> cpu_;
  std::vector<All> tensors_;
};

// Both succeed, or both fail with one text.
inline void ExpectSameStatus(const Status& cpu, const Status& cuda, const std::string& what) {
  EXPECT_EQ(cpu.code(), cuda.code()) << what << ": " << cuda.message();
  EXPECT_EQ(cpu.message(), cuda.message()) << what;
}

}  // namespace kvcache::cuda::testing
