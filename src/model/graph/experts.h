// A mixture of experts. A router chooses a few of many small feed-forward networks for each token.
//
//   out = Σ_i weight_i · Wdown_e (silu(Wgate_e h) × (Wup_e h)),  e = the token's i-th choice
//
// ExpertParams vary this. `biases` adds the expert's bias to each product; `gate_limit` selects
// gpt-oss's clamped gate; `weigh_input` multiplies the expert's input h by the weight instead of
// its output.
//
// A pass groups its tokens by expert, so that it reads each expert's weights once for all of the
// expert's tokens, and all experts' products are one parallel region. A slot is the place of one
// token in the group of one of its experts:
//
//   choices            t0: 5 1   t1: 1 3   t2: 5 3
//   slots by expert    1: t0 t1 | 3: t1 t2 | 5: t0 t2
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

#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

// The assignment of a pass's tokens to experts. It lives in host memory; a model keeps one for all
// of its layers.
class ExpertPlan {
 public:
  // Allocates memory for passes of `batch` tokens. Errors: kOutOfMemory with the sizes.
  Status Reserve(std::int64_t batch, int experts, int chosen);

  // Outputs for Backend::Route: [chosen × batch] expert numbers and weights.
  std::span<std::int32_t> Choices(std::int64_t batch);
  std::span<float> Weights(std::int64_t batch);

  // Multiplies each choice's weight by its expert's factor [experts].
  void ScaleWeights(std::span<const float> factors);

  // Returns each slot's expert's factor, from [experts]; valid until the next call.
  std::span<const float> SlotFactors(std::span<const float> factors);

  // Sorts the choices into slots, by expert and then by token. Cost: O(batch × chosen + experts).
  void Group(std::int64_t batch);

  // Moves the weights to slot_weights() and replaces them by ones, for weighting the experts'
  // inputs.
  void MoveWeightsToInputs();
  std::span<const float> slot_weights() const { return slot_weights_; }  // [slots]

  std::span<const std::int32_t> token_of_slot() const { return token_of_slot_; }
  std::span<const std::int32_t> expert_of_slot() const { return expert_of_slot_; }
  // [chosen × batch] slots of each token, in the order of its choices.
  std::span<const std::int32_t> slots() const { return slots_; }

  // Returns the products gate · h and up · h of all slots, valid until the next call. `gathered`
  // [hidden_size, slots] has h's columns by slot. For a pass of one token, `gathered` is h itself
  // [hidden_size, 1], and one group multiplies it by all of its experts. A null `gate` has no
  // product. If `gate` is `up`, the stack alternates between the two matrices of each expert.
  std::span<const LinearGroup> GateAndUp(const LinearWeight* gate, const LinearWeight& up,
                                         const TensorView& gathered, const TensorView& gate_out,
                                         const TensorView& up_out);
  // Returns the products down · inner of all slots, inner [ffn, slots]; valid until the next call.
  std::span<const LinearGroup> Down(const LinearWeight& down, const TensorView& inner,
                                    const TensorView& out);

 private:
  int experts_ = 0;
  int chosen_ = 0;
  std::vector<std::int32_t> choices_;         // [chosen × batch]
  std::vector<float> weights_;                // [chosen × batch]
  std::vector<float> slot_weights_;           // [slots]
  std::vector<float> slot_factors_;           // [slots]
  std::vector<std::int32_t> token_of_slot_;   // [slots]
  std::vector<std::int32_t> expert_of_slot_;  // [slots]
  std::vector<std::int32_t> slots_;           // [chosen × batch]
  std::vector<std::int32_t> begin_;           // [experts + 1]: first slot of each expert
  std::vector<LinearOutput> outputs_;
  std::vector<LinearGroup> groups_;
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
  void AdaptGateAndUp(Pass& pass, const ExpertPlan& plan, const TensorView& x,
                      const TensorView& gate_out, const TensorView& up_out) const;
  void Gate(Pass& pass, const TensorView& gate_out, const TensorView& up_out) const;
};

}  // namespace kvcache
