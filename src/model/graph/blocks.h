// What the layers of most families are made of: attention's projections, and the feed-forward part.
// A family's own file puts them together; nothing here knows which family it serves.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "model/graph/experts.h"
#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

// Grouped-query attention's matrices. Named as in GGUF: attn_q, attn_k, attn_v, attn_output.
struct AttentionWeights {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t k_dim = 0;
  std::int64_t v_dim = 0;
  Projection q, k, v;  // hidden_size → heads × dim
  Projection o;        // heads × v_dim → hidden_size

  // `bias` is that of q, k and v; `output_bias` that of o.
  static Result<AttentionWeights> Load(WeightReader& reader, const LayerParams& params, int layer,
                                       Bias bias = Bias::kNone, Bias output_bias = Bias::kNone);
};

// Its activations: [dim, heads, batch] each.
struct AttentionViews {
  TensorView q, k, v, out;
};
AttentionViews TakeAttention(Pass& pass, const AttentionWeights& weights);

// out = Wdown (activation(Wgate h) × (Wup h))
struct GatedFeedForward {
  Projection gate, up, down;
  Activation activation = Activation::kSilu;

  // PREFIXffn_gateSUFFIX and so on.
  static Result<GatedFeedForward> Load(WeightReader& reader, const std::string& prefix,
                                       std::int64_t hidden_size, std::int64_t ffn,
                                       const std::string& suffix = "");
  void Run(Pass& pass, const TensorView& h, const TensorView& out) const;  // out may be h
};

// Either kind: experts in those layers that have a router.
struct FeedForward {
  std::variant<GatedFeedForward, Experts> kind;

  static Result<FeedForward> Load(WeightReader& reader, const LayerParams& params,
                                  const ExpertParams& experts, int layer);
  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;
};

// "blk.7."
std::string LayerPrefix(int layer);

}  // namespace kvcache
