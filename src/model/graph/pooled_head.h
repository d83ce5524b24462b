// What a file has behind the pooling of a text's states: dense layers of an embedding model, or the scores of a
// reranker.
//
//   bert          cls, tanh; cls.output        each with an optional bias; scores
//   modern-bert   cls, GELU, layer norm; cls.output, on the mean of the states; scores
//   qwen3         cls.output, softmax: the probability of the first label ("yes"); scores
//   dense         dense_2, dense_3 (gemma-embedding)
//
// A file may lack any of these tensors; without all of them the head does nothing.
//
// Source: transformers' classification heads of these models; names and the order as llama.cpp has them
// (src/llama-graph.cpp, build_pooling).
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "kvcache/backend.h"
#include "model/adapter/adapter_bank.h"
#include "model/graph/activation_buffer.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

class PooledHead {
 public:
  // Takes the tensors that `params.pooled_head` allows. Errors name the tensor.
  static Result<PooledHead> Load(WeightReader& reader, const LayerParams& params);

  // Returns the values that Run writes for each column.
  std::int64_t outputs() const { return outputs_; }
  bool reads_mean() const { return kind_ == PooledHeadKind::kModernBert; }
  // Returns whether the tensors give scores.
  bool has_scores() const {
    return kind_ != PooledHeadKind::kDense && (first_.has_value() || last_.has_value());
  }

  // What the adapters of all columns add to the products.
  struct Adapters {
    AdapterBank* bank = nullptr;  // null: nothing
    AdapterUses uses{};
  };

  // Writes the head's values [outputs(), count] for states [hidden_size, count]. Errors: kOutOfMemory; those
  // of the kernels.
  Status Run(Backend& backend, const float* states, std::int64_t count, const Adapters& adapters,
             float* out);

 private:
  static constexpr std::int64_t kColumns = 64;  // that are computed at once

  Status RunColumns(Backend& backend, const float* states, std::int64_t count,
                    const Adapters& adapters, float* out);
  Status Activate(Backend& backend, const TensorView& x) const;

  PooledHeadKind kind_ = PooledHeadKind::kNone;
  std::int64_t inputs_ = 0;
  std::int64_t outputs_ = 0;
  std::optional<Projection> first_;  // cls, dense_2
  std::optional<Norm> norm_;
  std::optional<Projection> last_;  // cls.output, dense_3
  ActivationBuffer values_;
};

}  // namespace kvcache
