// Prints what a layer of a Llama model asks of the device for a token of 1, 16 and 64 sequences: launches, copies, and
// the host's time, over a device that does nothing. The model is narrow, which changes neither.
#include <cstdio>
#include <ctime>
#include <memory>
#include <utility>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/shim/counting_device.h"
#include "cuda/decoding_model.h"

namespace kvcache::cuda {
namespace {

struct Weights {
  const char* name;
  DType type;
  make_model::Mix mix;
};

make_model::Request ModelOf(const Weights& weights, int layers) {
  make_model::Request request{.type = weights.type, .mix = weights.mix};
  request.shape.layers = layers;
  request.shape.hidden_size = 1024;
  request.shape.heads = 8;
  request.shape.kv_heads = 2;
  request.shape.head_dim = 128;
  request.shape.ffn = 2048;
  return request;
}

struct Cost {
  double launches = 0;
  double copies = 0;
  double host_us = 0;
};

Cost CostOf(const Weights& weights, int layers, int sequences) {
  constexpr int kHistory = 512;
  constexpr int kSteps = 200;
  auto device = std::make_unique<CountingDevice>();
  CountingDevice& counting = *device;
  counting.keeps_names = false;
  CudaBackend backend(std::move(device));
  DecodingModel model(ModelOf(weights, layers), backend, sequences, kHistory);
  counting.counts = {};
  const std::clock_t begin = std::clock();  // of the processor: other programs do not count
  for (int i = 0; i < kSteps; ++i) model.Step();
  const double took_us = static_cast<double>(std::clock() - begin) * 1e6 / CLOCKS_PER_SEC;
  return {static_cast<double>(counting.counts.launches) / kSteps,
          static_cast<double>(counting.counts.copies_in) / kSteps, took_us / kSteps};
}

int Main() {
  constexpr int kFew = 2;
  constexpr int kMany = 16;
  std::printf(
      "| weights | sequences | launches of a layer | copies | host, µs | a pass without layers, µs "
      "|\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const Weights& weights : {Weights{"q8_0", DType::kQ8_0, make_model::Mix::kPure},
                                 {"q4_k_m", DType::kQ4_K, make_model::Mix::kMedium}}) {
    for (const int sequences : {1, 16, 64}) {
      const Cost few = CostOf(weights, kFew, sequences);
      const Cost many = CostOf(weights, kMany, sequences);
      const auto layer = [](double of_many, double of_few) {
        return (of_many - of_few) / (kMany - kFew);
      };
      const double host_us = layer(many.host_us, few.host_us);
      std::printf("| %s | %d | %.2f | %.2f | %.2f | %.1f |\n", weights.name, sequences,
                  layer(many.launches, few.launches), layer(many.copies, few.copies), host_us,
                  few.host_us - kFew * host_us);
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvcache::cuda

int main() {
  return kvcache::cuda::Main();
}
