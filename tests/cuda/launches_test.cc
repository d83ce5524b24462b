// What a layer asks of the device while a model decodes. More launches or copies make every token slower, and no other
// test would see it.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/shim/counting_device.h"
#include "cuda/decoding_model.h"

namespace kvcache::cuda_launches_test {
namespace {

using cuda::CountingDevice;
using Kernels = std::map<std::string, int>;

struct Asked {
  Kernels kernels;
  int copies_in = 0;
};

Asked StepOf(make_model::Request request, int layers, int sequences) {
  request.shape.layers = layers;
  auto device = std::make_unique<CountingDevice>();
  CountingDevice& counting = *device;
  cuda::CudaBackend backend(std::move(device));
  cuda::DecodingModel model(request, backend, sequences, 40);
  model.Step();
  counting.counts = {};
  model.Step();
  return {counting.counts.kernels, counting.counts.copies_in};
}

// What two more layers of a kind add.
Asked LayerOf(const make_model::Request& request, int sequences) {
  const Asked less = StepOf(request, 4, sequences);
  Asked more = StepOf(request, 6, sequences);
  for (const auto& [name, count] : less.kernels) more.kernels[name] -= count;
  std::erase_if(more.kernels, [](const auto& kernel) { return kernel.second == 0; });
  for (auto& [name, count] : more.kernels) count /= 2;
  more.copies_in -= less.copies_in;
  return more;
}

make_model::Request Llama(DType type) {
  make_model::Request request{.type = type};
  request.shape.hidden_size = 1024;
  request.shape.heads = 8;
  request.shape.kv_heads = 2;
  request.shape.head_dim = 128;
  request.shape.ffn = 1024;
  return request;
}

int All(const Kernels& kernels) {
  int count = 0;
  for (const auto& [name, of_kernel] : kernels) count += of_kernel;
  return count;
}

TEST(CudaLaunches, ALayerOfLlamaHasEleven) {
  for (const int sequences : {1, 3, 40}) {
    const Asked layer = LayerOf(Llama(DType::kQ8_0), sequences);
    EXPECT_EQ(All(layer.kernels), 11) << ::testing::PrintToString(layer.kernels);
    EXPECT_EQ(layer.copies_in, 0);
    EXPECT_EQ(layer.kernels.at("joined_norm_32"), 2);
    EXPECT_EQ(layer.kernels.at("joined_gate_32"), 1);
    EXPECT_EQ(layer.kernels.at("joined_store"), 1);
    EXPECT_EQ(layer.kernels.at("linear_quantize_32"), 1);
  }
}

TEST(CudaLaunches, ALayerWithFloatWeightsHasTen) {
  const Asked layer = LayerOf(Llama(DType::kF16), 1);
  EXPECT_EQ(All(layer.kernels), 10) << ::testing::PrintToString(layer.kernels);
  EXPECT_EQ(layer.kernels.at("joined_norm"), 2);
  EXPECT_EQ(layer.copies_in, 0);
}

// The only copy is attention's plan.
TEST(CudaLaunches, ATokenCopiesOnceToTheDevice) {
  for (const int sequences : {1, 40}) {
    EXPECT_EQ(StepOf(Llama(DType::kQ8_0), 2, sequences).copies_in, 1);
  }
}

// Layers with windows and layers without have a plan of attention each, and no layer another.
TEST(CudaLaunches, LayersWithWindowsShareAPlan) {
  make_model::Request request = Llama(DType::kQ8_0);
  request.architecture = "gemma2";
  EXPECT_EQ(LayerOf(request, 2).copies_in, 0);
}

}  // namespace
}  // namespace kvcache::cuda_launches_test
