// The feed-forward part of a layer: one gated network, or a mixture of experts.
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

// out = Wdown (activation(Wgate h) × (Wup h))
struct GatedFeedForward {
  Projection gate, up, down;
  Activation activation = Activation::kSilu;

  // Takes the tensors of `layer`: ffn_gate, ffn_up, ffn_down. Errors name the tensor.
  static Result<GatedFeedForward> Load(WeightReader& reader, const LayerParams& params, int layer);
  // Takes PREFIXffn_gateSUFFIX and so on. `ffn` is the number of values between the matrices.
  static Result<GatedFeedForward> Load(WeightReader& reader, const std::string& prefix,
                                       std::int64_t hidden_size, std::int64_t ffn,
                                       const std::string& suffix = "");
  // out [hidden_size, batch] for h [hidden_size, batch]; out may be h.
  void Run(Pass& pass, const TensorView& h, const TensorView& out) const;
};

// Experts in layers that have a router (ffn_gate_inp), one gated network in the others.
struct FeedForward {
  std::variant<GatedFeedForward, Experts> kind;

  // Errors name the tensor.
  static Result<FeedForward> Load(WeightReader& reader, const LayerParams& params,
                                  const ExpertParams& experts, int layer);
  // out [hidden_size, batch] for h [hidden_size, batch]; out may be h. `plan` is the model's.
  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;
};

}  // namespace kvcache
