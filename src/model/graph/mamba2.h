// A Mamba-2 layer's mixer. x, B and C come from a short convolution; z is a gate. For each head:
//
//   S = e^{a Δ} S + Δ x Bᵀ       y = S C + d x       Δ = softplus(δ + bias)
//   out = Wout · norm(y × silu(z))        normed over each group's heads, where the layer has a norm
//
// Source: Dao and Gu, "Transformers are SSMs" (2024).
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/graph/pass.h"
#include "model/graph/recurrent_params.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

enum class Mamba2Norm : std::uint8_t { kRequired, kIfPresent };

struct Mamba2 {
  std::vector<Projection> in;  // z, the convolution's channels, δ
  ConvTaps conv;
  TensorView dt_bias, rates;    // [heads]
  std::span<const float> skip;  // [heads]
  std::vector<Norm> norms;      // of each group: [inner / groups]; empty: none
  Projection out;

  // Takes the tensors of `layer`: ssm_in, ssm_conv1d and so on. Errors name the tensor.
  static Result<Mamba2> Load(WeightReader& reader, const LayerParams& params,
                             const RecurrentParams& sizes, int layer,
                             Mamba2Norm norm = Mamba2Norm::kRequired);

  // to [hidden_size, batch] = the mixer's result for h [hidden_size, batch]; `to` may be h. Reads and
  // writes the states of `layer`.
  void Run(Pass& pass, const RecurrentParams& sizes, int layer, const TensorView& h,
           const TensorView& to) const;

 private:
  Status LoadScan(WeightReader& reader, const std::string& prefix, const RecurrentParams& sizes);
  Status LoadNorms(WeightReader& reader, const std::string& prefix, const RecurrentParams& sizes,
                   float epsilon);
};

}  // namespace kvcache
