// The inputs of layers: a vector of P values for each token and layer, computed before the first layer from
// the token and from its embedding. A layer gates its vector and adds the result to its states.
//
//   e = √P · table[token],  p = rms(Wmodel x / √hidden_size) × weight       table[0] for tokens behind its rows
//   input = (p + e) / √2
//   result = rms(Wback (gelu(Wgate y) × input)) × weight
//
// gemma3n and gemma4 have them.
// Source: Hugging Face's modeling_gemma3n.py and modeling_gemma4.py.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

class LayerInputs {
 public:
  // Takes per_layer_token_embd, per_layer_model_proj and per_layer_proj_norm. `size` is P. Errors name the
  // tensor.
  static Result<LayerInputs> Load(WeightReader& reader, const LayerParams& params, int size);

  int size() const { return size_; }
  // Computes the vectors of all layers for the embedded tokens x. `tokens` is empty while the pass measures.
  // The vectors are valid until the caller's Pass::Scope ends.
  void Compute(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x);
  // to [P, batch] = the vectors of a layer.
  void CopyTo(Pass& pass, int layer, const TensorView& to) const;

 private:
  int size_ = 0;
  int layers_ = 0;
  TensorView table_;                // [P · layers, rows], at most as many rows as the vocabulary
  std::vector<std::int32_t> rows_;  // of the current pass's tokens
  Projection model_;                // hidden_size → P · layers
  Norm norm_;                       // [P]
  TensorView values_;               // [P, layers, batch] of the current pass
};

// What a layer does with its vector.
struct InputGate {
  Projection gate, back;  // hidden_size → P → hidden_size
  Norm post_norm;

  // Takes inp_gate, proj and post_norm of `layer`. Errors name the tensor.
  static Result<InputGate> Load(WeightReader& reader, const LayerParams& params, int size,
                                int layer);
  // out [hidden_size, batch] = the result for y [hidden_size, batch] and the layer's vectors. `out` may be y.
  void Run(Pass& pass, const LayerInputs& inputs, int layer, const TensorView& y,
           const TensorView& out) const;
};

}  // namespace kvcache
