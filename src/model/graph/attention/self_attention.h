// Grouped-query self-attention: the block that most families' layers begin with.
//
//   q, k, v = Wq h, Wk h, Wv h       each plus its bias, where the layer has one
//   q, k    = rms                    where the layer has such norms (QkNorms)
//   q, k    = rotated by position    where the layer has RoPE; before the norms with kRotatedHeads
//   q       = q × a factor per token where the family has one (mistral3)
//   out     = Wo attention(q, k, v)
//
// A file may have q, k and v as one matrix, attn_qkv. A family that orders these steps otherwise (llama4)
// or derives the values from elsewhere (gemma4, qwen3next, deepseek2) keeps a graph of its own.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

// Names of the four matrices' tensors, without ".weight" and ".bias".
struct AttentionNames {
  std::string q, k, v, o;
};

// The four matrices of grouped-query attention.
struct AttentionWeights {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t k_dim = 0;
  std::int64_t v_dim = 0;
  Projection q, k, v;  // hidden_size → heads × dim
  Projection o;        // heads × v_dim → hidden_size

  // Takes blk.LAYER.attn_q, attn_k, attn_v and attn_output, or attn_qkv in place of the first three. `bias`
  // applies to q, k and v, `output_bias` to o. Errors name the tensor.
  static Result<AttentionWeights> Load(WeightReader& reader, const LayerParams& params, int layer,
                                       Bias bias = Bias::kNone, Bias output_bias = Bias::kNone);

  // The same for tensors of other names.
  static Result<AttentionWeights> Load(WeightReader& reader, const LayerParams& params, int layer,
                                       const AttentionNames& names, Bias bias = Bias::kNone,
                                       Bias output_bias = Bias::kNone);
};

// The activations of grouped-query attention: [dim, heads, batch] each.
struct AttentionViews {
  TensorView q, k, v, out;
};
// Takes the four views from the pass. They are valid until the caller's Pass::Scope ends.
AttentionViews TakeAttention(Pass& pass, const AttentionWeights& weights);

// The norms of queries and keys, attn_q_norm and attn_k_norm.
enum class QkNorms : std::uint8_t {
  kNone,
  kHeads,         // of each head
  kRotatedHeads,  // of each head, after the rotation
  kRows,          // of all of a token's heads together
};

// Tensors that a layer has besides the four matrices.
struct SelfAttentionTensors {
  Bias bias = Bias::kNone;         // of q, k and v
  Bias output_bias = Bias::kNone;  // of o
  QkNorms norms = QkNorms::kNone;
  bool sinks = false;  // attn_sinks
  // Norms of rows are layer norms with biases; a file may lack one of them, or both.
  bool row_layer_norms = false;
};

// Settings that the family computes for a layer or for a pass.
struct SelfAttentionOptions {
  RopeParams rope{};                       // rotation of q and k; dims 0: none
  AttentionOptions attention{};            // `sinks` is overridden by the layer's
  std::span<const float> query_factors{};  // [batch] factors on q after the rotation; empty: none
};

struct SelfAttention {
  AttentionWeights weights;
  QkNorms norms = QkNorms::kNone;
  std::optional<Norm> q_norm, k_norm;  // [k_dim], or of a row
  std::span<const float> sinks;        // [heads], in the file; empty: none

  // Takes the tensors of `layer`. Errors name the tensor.
  static Result<SelfAttention> Load(WeightReader& reader, const LayerParams& params, int layer,
                                    const SelfAttentionTensors& tensors = {});

  // out [hidden_size, batch] = the block's result for h [hidden_size, batch]; out may be h. Puts
  // the batch's keys and values into the cache as `layer`'s.
  void Run(Pass& pass, int layer, const TensorView& h, const SelfAttentionOptions& options,
           const TensorView& out) const;

 private:
  Status LoadRowNorms(WeightReader& reader, const LayerParams& params, const std::string& prefix);
  void NormalizeHeads(Pass& pass, const TensorView& q, const TensorView& k) const;
};

}  // namespace kvcache
