// Which layers of a model a GPU computes, and how many tokens its memory has room for. The GPU has the last layers,
// and what comes behind them; the embedding too if it has all layers. Bits do not depend on it, so no text does.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/status.h"
#include "model/model.h"

namespace kvcache {

// What a model takes on a GPU, part by part.
struct GpuNeeds {
  struct Layer {
    std::int64_t weights = 0;       // bytes
    std::int64_t per_token = 0;     // bytes of keys and values of a token
    std::int64_t per_sequence = 0;  // bytes of windows, states and encoder outputs
  };
  std::int64_t before = 0;  // bytes of the embedding and of an encoder
  std::vector<Layer> layers;
  std::int64_t behind = 0;   // bytes of the output matrix, of draft heads
  std::int64_t scratch = 0;  // bytes of activations and logits
};

// What the cache of a model is made for.
struct GpuWants {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int context = 0;    // tokens that one sequence has at least; 0: the default of the model
  int sequences = 1;  // at least 1
  int prefill_chunk = 512;
};

GpuNeeds NeedsOf(const GgufFile& file, const ModelInfo& info, const GpuWants& wants);

struct GpuPlan {
  int layers = 0;                // of the model, the last ones; 0: the GPU has nothing
  std::int64_t pool_tokens = 0;  // for which there is room; those of all sequences together
};

// Returns the plan with the most layers that leave room for one sequence of `context` tokens in `free_bytes`.
GpuPlan PlanOfFreeMemory(const GpuNeeds& needs, const GpuWants& wants, std::int64_t free_bytes);

// Returns the plan with `layers` layers. Errors: kOutOfMemory, with the bytes that are needed and the layers that fit.
Result<GpuPlan> PlanOfLayers(int layers, const GpuNeeds& needs, const GpuWants& wants,
                             std::int64_t free_bytes);

}  // namespace kvcache
