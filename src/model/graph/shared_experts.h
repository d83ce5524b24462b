// A feed-forward part with a network that every token uses. Layers with a router add the chosen
// experts' result and the shared network's; other layers have the shared network alone.
//
//   shared = Wdown (silu(Wgate h) × (Wup h)), times sigmoid(w · h) if it has a gate
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/graph/experts.h"
#include "model/graph/feed_forward.h"

namespace kvcache {

enum class SharedExpertGate : std::uint8_t { kNone, kSigmoid };

// The network that every token uses. GGUF names: ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp,
// ffn_gate_inp_shexp.
struct SharedExpert {
  GatedFeedForward ffn;
  std::optional<Projection> gate;  // hidden_size → 1

  // `inner` is the number of values between the matrices. Errors name the tensor.
  static Result<SharedExpert> Load(WeightReader& reader, const std::string& prefix,
                                   std::int64_t hidden_size, std::int64_t inner,
                                   SharedExpertGate gate);
  // out [hidden_size, batch] for h [hidden_size, batch]; out may be h.
  void Run(Pass& pass, const TensorView& h, const TensorView& out) const;
};

struct SharedExperts {
  std::optional<Experts> routed;
  SharedExpert shared;  // named ffn_gate and so on in layers without a router

  // Loads a layer with a router. `shared_ffn` is the shared network's inner size. Errors name the
  // tensor.
  static Result<SharedExperts> Routed(WeightReader& reader, const LayerParams& params,
                                      const ExpertParams& experts, std::int64_t shared_ffn,
                                      int layer, SharedExpertGate gate = SharedExpertGate::kNone);
  // Loads a layer without a router.
  static Result<SharedExperts> Dense(WeightReader& reader, const LayerParams& params, int layer);

  // out [hidden_size, batch] for h [hidden_size, batch]; out may be h. `plan` is the model's.
  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;
};

}  // namespace kvcache
