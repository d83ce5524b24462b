// A mixture of experts: a router chooses some of many small feed-forward networks for each token.
//
//   out = Σ_i weight_i · Wdown_e (activation(Wgate_e h) × (Wup_e h)),  e = the token's i-th choice
//
// With ExpertParams::biases each product has its expert's added; with a gate_limit the gate is
// gpt-oss's.
//
// With ExpertParams::weigh_input weights multiply h instead, for each of the token's experts.
//
// A pass groups its tokens by expert, so that each expert's weights are read once for all of its
// tokens, and all experts' products are one parallel region:
//
//   choice of token    t0: 5 1   t1: 1 3   t2: 5 3
//   slots by expert    1: t0 t1 | 3: t1 t2 | 5: t0 t2      a token's place in each of its groups
//   gate, up, down     over slots
//   combine            t0: its slots in the order of its choice, …
//
// Exactness: what a token gets depends on its own logits and activations alone; groups only decide
// where a column lies. Source: Shazeer et al., "Outrageously large neural networks" (2017); Qwen3
// and Mixtral for the order softmax, choice, renormalisation.
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

// Who goes where in a pass; host memory that a model keeps for all of its layers.
class ExpertPlan {
 public:
  // Room for passes of `batch` tokens. kOutOfMemory with the sizes.
  Status Reserve(std::int64_t batch, int experts, int chosen);

  // Filled by Backend::Route: [chosen] of each token.
  std::span<std::int32_t> Choices(std::int64_t batch);
  std::span<float> Weights(std::int64_t batch);

  // Sorts the choices into slots, by expert and then by token.
  void Group(std::int64_t batch);

  // Moves the weights to slot_weights(), leaving ones: what goes into experts is weighted then.
  void MoveWeightsToInputs();
  std::span<const float> slot_weights() const { return slot_weights_; }  // [slots]

  std::span<const std::int32_t> token_of_slot() const { return token_of_slot_; }
  std::span<const std::int32_t> expert_of_slot() const { return expert_of_slot_; }
  // [chosen] of each token, in the order of its choice.
  std::span<const std::int32_t> slots() const { return slots_; }

  // h · gate and up for all slots: gathered [width, slots] is h's columns by slot. A pass of one
  // token needs no gathering: h itself is multiplied with all of its experts at once.
  std::span<const LinearGroup> GateAndUp(const LinearWeight& gate, const LinearWeight& up,
                                         const TensorView& gathered, const TensorView& gate_out,
                                         const TensorView& up_out);
  // inner [ffn, slots] · down.
  std::span<const LinearGroup> Down(const LinearWeight& down, const TensorView& inner,
                                    const TensorView& out);

 private:
  int experts_ = 0;
  int chosen_ = 0;
  std::vector<std::int32_t> choices_;         // [chosen × batch]
  std::vector<float> weights_;                // [chosen × batch]
  std::vector<float> slot_weights_;           // [slots]
  std::vector<std::int32_t> token_of_slot_;   // [slots]
  std::vector<std::int32_t> expert_of_slot_;  // [slots]
  std::vector<std::int32_t> slots_;           // [chosen × batch]
  std::vector<std::int32_t> begin_;           // [experts + 1]: first slot of each
  std::vector<LinearOutput> outputs_;
  std::vector<LinearGroup> groups_;
};

// One layer's router and experts.
struct Experts {
  ExpertParams params;
  Projection router;                             // [width] → [experts]
  std::span<const float> selection_bias;         // [experts] or empty; in the file
  std::unique_ptr<LinearWeight> gate, up, down;  // stacks of params.count
  // [outputs, experts], with params.biases.
  std::optional<TensorView> gate_bias, up_bias, down_bias;

  static Result<Experts> Load(WeightReader& reader, const std::string& prefix, std::int64_t width,
                              const ExpertParams& params);

  // out [width, batch] as above; may be h. `plan` is the model's.
  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;

 private:
  RouterOptions router_options() const;
  Status LoadBiases(WeightReader& reader, const std::string& prefix, std::int64_t width);
  void Gate(Pass& pass, const TensorView& gate_out, const TensorView& up_out) const;
};

}  // namespace kvcache
