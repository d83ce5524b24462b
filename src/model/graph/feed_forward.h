// The feed-forward part of a layer: one gated network, or a mixture of experts; and beside it a network
// that every token uses, where the family has one.
//
//   gated    Wdown (activation(Wgate h) × (Wup h))
//   plain    Wdown activation(Wup h)
//   shared   the same, times sigmoid(w · h) if it has a gate
//   out      gated, plain or experts, + shared
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "model/graph/experts.h"
#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

struct GatedFeedForward {
  Projection gate, up, down;
  Activation activation = Activation::kSilu;

  // Takes the tensors of `layer`: ffn_gate, ffn_up, ffn_down; without the first if the gate is fused. Errors
  // name the tensor.
  static Result<GatedFeedForward> Load(WeightReader& reader, const LayerParams& params, int layer);
  // Takes PREFIXffn_gateSUFFIX and so on. `ffn` is the number of values between the matrices.
  static Result<GatedFeedForward> Load(WeightReader& reader, const std::string& prefix,
                                       std::int64_t hidden_size, std::int64_t ffn,
                                       const std::string& suffix = "");
  // out [hidden_size, batch] for h [hidden_size, batch]; out may be h.
  void Run(Pass& pass, const TensorView& h, const TensorView& out) const;
};

struct PlainFeedForward {
  Projection up, down;
  Activation activation = Activation::kSilu;
  std::optional<XieluParams> xielu;  // in place of `activation`

  // Takes ffn_up and ffn_down of `layer`. Errors name the tensor.
  static Result<PlainFeedForward> Load(WeightReader& reader, const LayerParams& params, int layer);
  // out [hidden_size, batch] for h [hidden_size, batch]; out may be h.
  void Run(Pass& pass, const TensorView& h, const TensorView& out) const;
};

// The network that every token uses. GGUF names: ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp,
// ffn_gate_inp_shexp.
struct SharedExpert {
  GatedFeedForward ffn;
  std::optional<Projection> gate;  // hidden_size → 1

  // Errors name the tensor.
  static Result<SharedExpert> Load(WeightReader& reader, const std::string& prefix,
                                   std::int64_t hidden_size, const ExpertParams& experts);
  // out [hidden_size, batch] for h [hidden_size, batch]; out may be h.
  void Run(Pass& pass, const TensorView& h, const TensorView& out) const;
};

struct FeedForward {
  std::variant<GatedFeedForward, PlainFeedForward, Experts> kind;
  std::optional<SharedExpert> shared;

  // Loads experts in the layers that `experts` names. Of these, a layer that has ffn_gate in place of a
  // router (ffn_gate_inp) has one gated network. Layers without experts have
  // a gated or a plain network, as `params` says. Errors name the tensor.
  static Result<FeedForward> Load(WeightReader& reader, const LayerParams& params,
                                  const ExpertParams& experts, int layer);
  // out [hidden_size, batch] for h [hidden_size, batch]; out may be h. `plan` is the model's.
  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;

 private:
  void RunKind(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;
};

}  // namespace kvcache
