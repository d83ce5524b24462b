// What the layers of gemma4 and of its draft head share: two kinds of layers, with and without a window, and
// the parts of a layer besides its keys and values.
//
// Thread safety: one thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "model/graph/attention/window_layers.h"
#include "model/graph/feed_forward.h"
#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/rope_scaling.h"
#include "model/load/weights.h"

namespace kvcache {

struct Gemma4Kinds {
  std::vector<AttentionSpan> spans;  // [layers]
  RopeTable rope;                    // of layers without a window
  RopeTable window_rope;             // of layers with a window
  int dim = 0;                       // head size of layers without a window
  int window_dim = 0;                // head size of layers with a window

  // Errors name the key.
  static Result<Gemma4Kinds> Read(KeyReader& keys, const LayerParams& params,
                                  WeightReader& weights);

  bool IsWindowed(int layer) const { return spans[static_cast<std::size_t>(layer)].window > 0; }
  int HeadDim(int layer) const { return IsWindowed(layer) ? window_dim : dim; }
  RopeParams Rope(int layer) const { return (IsWindowed(layer) ? window_rope : rope).params(); }
};

// Experts beside a layer's gated network. The router reads the hidden states themselves, normed and divided
// by √hidden_size:
//
//   y = rms(ffn(rms(x))) + rms(experts(rms(x)))      each norm with its own weights
struct Gemma4Experts {
  Experts experts;
  Norm router_norm, in_norm, out_norm,
      dense_norm;  // [hidden_size]; the last of the gated network's result

  // Takes the tensors of layer `index`. Errors name the tensor.
  static Result<Gemma4Experts> Load(WeightReader& reader, const LayerParams& params,
                                    const ExpertParams& experts, int index);
  // Adds the experts' result for x to h, which is the gated network's result.
  void AddResult(Pass& pass, ExpertPlan& plan, const TensorView& x, const TensorView& h) const;
};

struct Gemma4Layer {
  Norm attn_norm, attn_post_norm, ffn_norm, ffn_post_norm;  // [hidden_size]
  Norm q_norm;                                              // [dim]
  Projection q, o;
  GatedFeedForward ffn;
  std::optional<Gemma4Experts> experts;
  float scale = 1.0f;  // of the result
  int heads = 0;
  int dim = 0;

  // Takes the tensors of layer `index`, with heads of `dim` values; experts, if the file has a router in that
  // layer. Errors name the tensor.
  static Result<Gemma4Layer> Load(WeightReader& reader, const LayerParams& params,
                                  const ExpertParams& experts, int index, int dim);

  // to [dim, heads, batch] = the rotated queries of h.
  void Queries(Pass& pass, const TensorView& h, const RopeParams& rope, const TensorView& to) const;
  // Adds the layer's attention h and then its feed-forward part to x. h is scratch afterwards. `plan` is the
  // model's.
  void AddAttended(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& x) const;
};

}  // namespace kvcache
