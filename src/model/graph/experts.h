// A mixture of experts. A router chooses a few of many small feed-forward networks for each token.
//
//   out = Σ_i weight_i · Wdown_e (silu(Wgate_e h) × (Wup_e h)),  e = the token's i-th choice
//
// ExpertParams vary this. `biases` adds the expert's bias to each product; `gate_limit` selects
// gpt-oss's clamped gate; `weigh_input` multiplies the expert's input h by the weight instead of
// its output.
//
// A pass groups its tokens by expert, so that it reads each expert's weights once for all of the
// expert's tokens, and all experts' products are one parallel region (kvcache/expert_routing.h):
//
//   gate, up, down     over all slots
//   combine            t0: the sum over its slots, in the order of its choices; …
//
// Exactness: a token's result depends on its own logits and activations alone. Groups only decide
// which column holds it.
// Source: Shazeer et al., "Outrageously large neural networks" (2017); Qwen3 and Mixtral for the
// order softmax, choice, renormalisation.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/host_routing.h"
#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

// Where a pass's tokens are assigned to experts: in the backend, or on the host. A model keeps one for all of its
// layers.
class ExpertPlan {
 public:
  // The host's memory for these sizes. Errors: kOutOfMemory with the sizes.
  Status Reserve(const RoutingSizes& sizes);

  // Returns the routing of the next layer; valid until the plan changes its backend. REQUIRES: Reserve.
  Result<ExpertRouting*> RoutingOf(Backend& backend);

 private:
  RoutingSizes sizes_;
  HostRouting host_;
  Backend* backend_ = nullptr;          // of the last call
  std::unique_ptr<ExpertRouting> own_;  // the backend's; null: host_ routes
};

// One layer's router and experts.
struct Experts {
  ExpertParams params;
  Projection router;                             // [hidden_size] → [experts]
  std::span<const float> selection_bias;         // [experts] or empty; lies in the file
  std::unique_ptr<LinearWeight> gate, up, down;  // stacks of params.count; no gate without `gated`
  bool is_fused = false;                         // `up` alternates between gate and up; no `gate`
  // [experts] on the products of gate and up, and on the experts' results; empty: none.
  std::span<const float> gate_factors, up_factors, factors;
  // [outputs, experts]; present with params.biases.
  std::optional<TensorView> gate_bias, up_bias, down_bias;

  // Takes PREFIXffn_gate_inp, ffn_gate_exps and so on. Errors name the tensor; kUnsupported for
  // more experts than the router serves.
  static Result<Experts> Load(WeightReader& reader, const std::string& prefix,
                              std::int64_t hidden_size, const ExpertParams& params);

  // out [hidden_size, batch] as above, for h [hidden_size, batch]; out may be h.
  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;
  // The same for a router's logits [experts, batch] of the caller. h and out have the experts' width.
  void RunRouted(Pass& pass, ExpertPlan& plan, const TensorView& logits, const TensorView& h,
                 const TensorView& out) const;

 private:
  Status LoadStacks(WeightReader& reader, const std::string& prefix, std::int64_t width);
  RouterOptions router_options() const;
  Status LoadBiases(WeightReader& reader, const std::string& prefix, std::int64_t hidden_size);
  void MultiplyGateAndUp(Pass& pass, ExpertRouting& routing, const TensorView& x,
                         const TensorView& gate_out, const TensorView& up_out) const;
  void Gate(Pass& pass, const TensorView& gate_out, const TensorView& up_out) const;
};

}  // namespace kvcache
