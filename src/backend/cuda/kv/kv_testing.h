// The CUDA backend and the CPU's side by side: the same memory, the same calls, the same bytes.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/shim/shim_device.h"
#include "gtest/gtest.h"
#include "kvcache/cpu_backend.h"

namespace kvcache::cuda::twins {

using Bytes = std::vector<std::byte>;

// A range of memory on both sides.
struct TwinMemory {
  Bytes cpu;  // 64 bytes more than `size`, for alignment
  std::unique_ptr<Buffer> cuda;
  std::size_t size = 0;

  std::byte* on_cpu() {
    return cpu.data() + (64 - reinterpret_cast<std::uintptr_t>(cpu.data()) % 64) % 64;
  }
  std::byte* on_cuda() { return cuda->data(); }
};

struct TwinLayer {
  TwinMemory k;
  TwinMemory v;
  LayerKv cpu;
  LayerKv cuda;
};

class Twins {
 public:
  explicit Twins(std::uint64_t seed)
      : random_(static_cast<std::mt19937::result_type>(seed)),
        cpu_(MakeCpuBackend({.threads = 1}).value()),
        cuda_(std::make_unique<CudaBackend>(MakeShimDevice({.seed = seed}))) {}

  Backend& cpu() { return *cpu_; }
  CudaBackend& cuda() { return *cuda_; }
  std::mt19937& random() { return random_; }

  // Returns a number in [low, high].
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  template <class T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Draw(0, static_cast<int>(values.size()) - 1)];
  }

  TwinMemory Upload(std::span<const std::byte> bytes) {
    TwinMemory memory;
    memory.size = bytes.size();
    memory.cpu.resize(bytes.size() + 64);
    memory.cuda = cuda_->Allocate(bytes.size()).value();
    if (bytes.empty()) return memory;
    std::memcpy(memory.on_cpu(), bytes.data(), bytes.size());
    EXPECT_TRUE(cuda_->device().CopyIn(bytes, memory.on_cuda()).ok());
    return memory;
  }
  TwinMemory Noise(std::int64_t size) {
    Bytes bytes(static_cast<std::size_t>(size));
    for (std::byte& byte : bytes) byte = std::byte{static_cast<std::uint8_t>(Draw(0, 255))};
    return Upload(bytes);
  }
  // Normal values, of which some are outliers, zeros or very small.
  std::vector<float> Values(std::int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = normal(random_);
      const int kind = Draw(0, 63);
      if (kind == 0) value *= 100.0f;
      if (kind == 1) value = 0.0f;
      if (kind == 2) value *= 1e-6f;
    }
    return values;
  }
  // Blocks of values that are difficult to round come after another.
  std::vector<float> HardValues(std::int64_t count) {
    std::vector<float> values = Values(count);
    for (std::size_t begin = 0; begin < values.size(); begin += 32) {
      const float factor = OneOf({1.0f, 0.0f, -0.0f, 1e-38f, 1e-42f, 1e9f, 1e37f, 6e-5f});
      const std::size_t end = std::min(values.size(), begin + 32);
      for (std::size_t i = begin; i < end; ++i) {
        values[i] *= factor;
        if (Draw(0, 3) == 0) values[i] = (Draw(0, 1) == 0 ? 3.0f : -3.0f) * factor;
        if (Draw(0, 999) == 0) values[i] = OneOf({INFINITY, -INFINITY, NAN});
      }
    }
    return values;
  }

  // Makes a layer with noise in it, the same on both sides. `like` has shape, types and layout.
  TwinLayer MakeLayer(const LayerKv& like) {
    TwinLayer layer;
    layer.k = Noise(like.KBytes());
    layer.v = Noise(like.VBytes());
    layer.cpu = layer.cuda = like;
    layer.cpu.k = layer.k.on_cpu();
    layer.cuda.k = layer.k.on_cuda();
    if (!like.shape.v_in_k) {
      layer.cpu.v = layer.v.on_cpu();
      layer.cuda.v = layer.v.on_cuda();
    }
    return layer;
  }

  // Expects the same bytes on both sides.
  ::testing::AssertionResult Same(TwinMemory& memory) {
    Bytes bytes(memory.size);
    if (bytes.empty()) return ::testing::AssertionSuccess();
    const Status status = cuda_->device().CopyOut(memory.on_cuda(), bytes);
    if (!status.ok()) return ::testing::AssertionFailure() << status.message();
    std::size_t differ = 0;
    std::size_t first = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      if (bytes[i] == memory.on_cpu()[i]) continue;
      first = i;
      ++differ;
    }
    if (differ == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << differ << " of " << bytes.size() << " bytes differ, the first at " << first << ": "
           << std::to_integer<int>(bytes[first]) << ", CPU "
           << std::to_integer<int>(memory.on_cpu()[first]);
  }
  ::testing::AssertionResult Same(TwinLayer& layer) {
    ::testing::AssertionResult k = Same(layer.k);
    if (!k) return k << " (K)";
    return Same(layer.v) << " (V)";
  }

  // Ranges of cells that do not overlap, of random lengths, in random order.
  std::vector<CellRun> DrawRuns(std::int64_t cells, int count) {
    std::vector<CellRun> runs;
    std::int32_t next = 0;
    for (int i = 0; i < count && next < cells; ++i) {
      const auto begin = next + OneOf({0, 0, 1, 5, 16 - next % 16});
      const auto length = OneOf({1, 2, 15, 16, 17, 33, 48});
      if (begin >= cells) break;
      runs.push_back(
          {begin, static_cast<std::int32_t>(std::min<std::int64_t>(length, cells - begin))});
      next = begin + runs.back().length;
    }
    std::shuffle(runs.begin(), runs.end(), random_);
    return runs;
  }

 private:
  std::mt19937 random_;
  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<CudaBackend> cuda_;
};

// A kind of layer, for tests of all of them.
struct LayerKind {
  const char* name;
  DType k_type;
  DType v_type;
  KvLayout layout = KvLayout::kTiled;
  bool v_transposed = false;
  bool v_in_k = false;

  bool blocks() const { return InfoOf(k_type).block_size > 1 || InfoOf(v_type).block_size > 1; }
  // Returns a layer of a random shape, without memory.
  LayerKv Draw(Twins& twins, std::int64_t cells) const {
    LayerKv layer;
    layer.k_type = k_type;
    layer.v_type = v_type;
    layer.layout = layout;
    layer.v_transposed = v_transposed;
    layer.cells = cells;
    KvShape& shape = layer.shape;
    shape.kv_heads = twins.Draw(1, 3);
    if (blocks()) {
      shape.k_dim = twins.OneOf({32, 64, 96, 128, 256});
      shape.v_dim = twins.OneOf({32, 64, 96});
    } else {
      shape.k_dim = twins.OneOf({1, 2, 7, 16, 40, 64, 80});
      shape.v_dim = twins.OneOf({1, 3, 8, 32, 72});
    }
    shape.v_in_k = v_in_k;
    if (v_in_k) shape.v_dim = std::min(shape.v_dim, shape.k_dim);
    return layer;
  }
};

inline void PrintTo(const LayerKind& kind, std::ostream* out) {
  *out << kind.name;
}

inline const LayerKind kLayerKinds[] = {
    {"f32", DType::kF32, DType::kF32},
    {"f16", DType::kF16, DType::kF16},
    {"bf16", DType::kBF16, DType::kBF16},
    {"f16_f32", DType::kF16, DType::kF32},
    {"plain_f32", DType::kF32, DType::kF32, KvLayout::kPlain},
    {"plain_f16_bf16", DType::kF16, DType::kBF16, KvLayout::kPlain},
    {"transposed_f16", DType::kF16, DType::kF16, KvLayout::kPlain, true},
    {"transposed_f32", DType::kF32, DType::kF32, KvLayout::kPlain, true},
    {"latent_f16", DType::kF16, DType::kF16, KvLayout::kTiled, false, true},
    {"latent_plain_bf16", DType::kBF16, DType::kBF16, KvLayout::kPlain, false, true},
    {"q8_0", DType::kQ8_0, DType::kQ8_0},
    {"q4_0", DType::kQ4_0, DType::kQ4_0},
    {"q8_0_q4_0", DType::kQ8_0, DType::kQ4_0},
    {"q4_0_f16", DType::kQ4_0, DType::kF16},
    {"f32_q8_0", DType::kF32, DType::kQ8_0},
    {"latents_q8_0", DType::kQ8_0, DType::kQ8_0, KvLayout::kTiled, false, true},
};

}  // namespace kvcache::cuda::twins
