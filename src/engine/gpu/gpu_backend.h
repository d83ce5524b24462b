// The backend of a model: the processor, a GPU, or both with the layers divided between them (gpu_plan.h).
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/gpu/gpu_plan.h"
#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "kvcache_engine/adapter.h"

namespace kvcache {

// A GPU that may compute layers.
struct Gpu {
  std::string name;  // as the driver says it
  std::int64_t free_bytes = 0;
  // `threads` of the host work for the GPU; 0: one per core.
  std::function<Result<std::unique_ptr<Backend>>(int threads)> open;
};

// Finds the first GPU. Errors: kNotFound, with what is missing (a driver, a device); kUnsupported if the program was
// built without GPUs, or KVCACHE_GPU is 0.
using FindGpu = std::function<Result<Gpu>()>;
Result<Gpu> FirstGpu();

struct BackendWants {
  int threads = 0;  // of the processor; 0: one per core
  bool uses_numa = true;
  int gpu_layers = -1;  // -1: as many as fit, if there is a GPU
  GpuWants cache{};
  // What comes beside the model: the file of a draft head, which may be the model's own; empty: none.
  std::string draft_head{};
  std::span<const EngineAdapter> adapters{};
};

struct BackendChoice {
  std::unique_ptr<Backend> backend;
  GpuPlan plan{};           // of 0 layers: the processor computes all
  int layers = 0;           // of the model, if a GPU has some
  std::string gpu{};        // its name; empty: the processor computes all
  std::string reason{};     // why no GPU is used, where one could be
  std::string processor{};  // "AVX3 with 8 threads"
};

// Returns one line on where a model is computed: "NVIDIA H100: 24 of 32 layers, 12,288 MiB with 32,768 tokens of keys
// and values; processor: AVX3 with 8 threads", or "processor: AVX3 with 8 threads; no GPU: REASON". `tokens`: of the
// pool; 0: unknown.
std::string MachineLine(const BackendChoice& choice, std::int64_t tokens);

// Makes the backend of the model in `file`. With gpu_layers = -1 a GPU that cannot be used is no error: the processor
// computes all. Errors: those of MakeCpuBackend; with gpu_layers > 0 those of `find` and PlanOfLayers.
Result<BackendChoice> ChooseBackend(const GgufFile& file, const BackendWants& wants,
                                    const FindGpu& find = FirstGpu);

}  // namespace kvcache
