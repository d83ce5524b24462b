// A feed-forward part with something for every token: in layers with a router, the chosen experts'
// answer and that of a shared network, added; in the others that network alone.
//
//   shared = Wdown (silu(Wgate h) × (Wup h)), times sigmoid(w · h) where it has a gate
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

// The network that every token goes through. Named as in GGUF: ffn_gate_shexp, ffn_up_shexp,
// ffn_down_shexp, ffn_gate_inp_shexp.
struct SharedExpert {
  GatedFeedForward ffn;
  std::optional<Projection> gate;  // hidden_size → 1

  static Result<SharedExpert> Load(WeightReader& reader, const std::string& prefix,
                                   std::int64_t hidden_size, std::int64_t inner,
                                   SharedExpertGate gate);
  void Run(Pass& pass, const TensorView& h, const TensorView& out) const;  // out may be h
};

struct SharedExperts {
  std::optional<Experts> routed;
  SharedExpert shared;  // without a router: ffn_…

  // A layer with a router, whose shared network has inner size `shared_ffn`.
  static Result<SharedExperts> Routed(WeightReader& reader, const LayerParams& params,
                                      const ExpertParams& experts, std::int64_t shared_ffn,
                                      int layer, SharedExpertGate gate = SharedExpertGate::kNone);
  // A layer without.
  static Result<SharedExperts> Dense(WeightReader& reader, const LayerParams& params, int layer);

  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;
};

}  // namespace kvcache
