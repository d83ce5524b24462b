// Which layers of a model a GPU computes, and how many tokens its memory has room for. The GPU has the last layers,
// and what comes behind them; the embedding too if it has all layers. Bits do not depend on it, so no text does.
//
// Thread safety: values.
#pragma once

#include <cstdint>
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
  std::int64_t behind = 0;   // bytes of the output matrix, of a draft head
  std::int64_t scratch = 0;  // bytes of activations and logits
  std::int64_t calls =
      0;  // bytes that the backend takes for a call: partial results, cells on their way to the host
};

// The files of a model.
struct GpuFiles {
  const GgufFile& model;
  const GgufFile* head =
      nullptr;  // of a draft head that is used, the model's own file or another one
  std::vector<const GgufFile*> adapters{};
};

// What the cache of a model is made for.
struct GpuWants {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int context = 0;    // tokens that one sequence has at least; 0: the default of the model
  int sequences = 1;  // at least 1
  int prefill_chunk = 512;
};

// `info` has the memory of the head, if there is one (Model::LoadHead).
GpuNeeds NeedsOf(const GpuFiles& files, const ModelInfo& info, const GpuWants& wants);

struct GpuPlan {
  int layers = 0;                // of the model, the last ones; 0: the GPU has nothing
  std::int64_t pool_tokens = 0;  // for which there is room; those of all sequences together
  std::int64_t fixed_bytes = 0;  // of the GPU: all but keys and values of tokens
  std::int64_t token_bytes = 0;  // of the GPU, for keys and values of a token
};

// Returns the tokens of a pool that is made for no number of bytes: `wanted`, or half of those that fit on the GPU if
// that is more; at most those that fit there, and those that fit in the host's memory (0: any number).
std::int64_t PoolTokens(const GpuPlan& plan, std::int64_t wanted, std::int64_t host_tokens);

// Returns the plan with the most layers that leave room for one sequence of `context` tokens in `free_bytes`.
GpuPlan PlanOfFreeMemory(const GpuNeeds& needs, const GpuWants& wants, std::int64_t free_bytes);

// Returns the plan with `layers` layers. Errors: kOutOfMemory, with the bytes that are needed and the layers that fit.
Result<GpuPlan> PlanOfLayers(int layers, const GpuNeeds& needs, const GpuWants& wants,
                             std::int64_t free_bytes);

}  // namespace kvcache
