#include "model/graph/shared_experts.h"

#include <utility>

namespace kvcache {

Result<SharedExpert> SharedExpert::Load(WeightReader& reader, const std::string& prefix,
                                        std::int64_t hidden_size, std::int64_t inner,
                                        SharedExpertGate gate) {
  SharedExpert e;
  KVCACHE_ASSIGN_OR_RETURN(e.ffn,
                           GatedFeedForward::Load(reader, prefix, hidden_size, inner, "_shexp"));
  if (gate == SharedExpertGate::kNone) return e;
  KVCACHE_ASSIGN_OR_RETURN(e.gate, reader.Linear(prefix + "ffn_gate_inp_shexp", hidden_size, 1));
  return e;
}

void SharedExpert::Run(Pass& pass, const TensorView& h, const TensorView& out) const {
  if (!gate.has_value()) return ffn.Run(pass, h, out);
  const Pass::Scope scope(pass);
  const TensorView share = pass.TakeHidden(1);
  pass.Linear(h, {{*gate, share}});
  pass.Activate(share, Activation::kSigmoid);
  ffn.Run(pass, h, out);
  pass.Multiply(out, share);
}

Result<SharedExperts> SharedExperts::Routed(WeightReader& reader, const LayerParams& params,
                                            const ExpertParams& experts, std::int64_t shared_ffn,
                                            int layer, SharedExpertGate gate) {
  const std::string prefix = LayerPrefix(layer);
  SharedExperts block;
  KVCACHE_ASSIGN_OR_RETURN(Experts routed,
                           Experts::Load(reader, prefix, params.hidden_size, experts));
  block.routed = std::move(routed);
  KVCACHE_ASSIGN_OR_RETURN(
      block.shared, SharedExpert::Load(reader, prefix, params.hidden_size, shared_ffn, gate));
  return block;
}

Result<SharedExperts> SharedExperts::Dense(WeightReader& reader, const LayerParams& params,
                                           int layer) {
  SharedExperts block;
  KVCACHE_ASSIGN_OR_RETURN(block.shared.ffn, GatedFeedForward::Load(reader, params, layer));
  return block;
}

void SharedExperts::Run(Pass& pass, ExpertPlan& plan, const TensorView& h,
                        const TensorView& out) const {
  if (!routed.has_value()) return shared.Run(pass, h, out);
  const Pass::Scope scope(pass);
  const TensorView experts = pass.TakeHidden(h.dims[0]);
  routed->Run(pass, plan, h, experts);
  shared.Run(pass, h, out);
  pass.Add(out, experts);
}

}  // namespace kvcache
