#include "model/graph/feed_forward.h"

#include <utility>
#include <vector>

namespace kvcache {

Result<GatedFeedForward> GatedFeedForward::Load(WeightReader& reader, const LayerParams& params,
                                                int layer) {
  const std::int64_t ffn = params.ffn[static_cast<std::size_t>(layer)];
  const std::string prefix = LayerPrefix(layer);
  GatedFeedForward block;
  if (params.fused_gate) {
    KVCACHE_ASSIGN_OR_RETURN(
        std::vector<Projection> both,
        reader.LinearParts(prefix + "ffn_up", params.hidden_size, {ffn, ffn}, params.ffn_bias));
    block.gate = std::move(both[0]);
    block.up = std::move(both[1]);
  } else {
    KVCACHE_ASSIGN_OR_RETURN(block.gate,
                             reader.Linear(prefix + "ffn_gate", params.hidden_size, ffn));
    KVCACHE_ASSIGN_OR_RETURN(
        block.up, reader.Linear(prefix + "ffn_up", params.hidden_size, ffn, params.ffn_bias));
  }
  KVCACHE_ASSIGN_OR_RETURN(
      block.down, reader.Linear(prefix + "ffn_down", ffn, params.hidden_size, params.ffn_bias));
  block.activation = params.activation;
  return block;
}

Result<GatedFeedForward> GatedFeedForward::Load(WeightReader& reader, const std::string& prefix,
                                                std::int64_t hidden_size, std::int64_t ffn,
                                                const std::string& suffix) {
  GatedFeedForward block;
  KVCACHE_ASSIGN_OR_RETURN(block.gate,
                           reader.Linear(prefix + "ffn_gate" + suffix, hidden_size, ffn));
  KVCACHE_ASSIGN_OR_RETURN(block.up, reader.Linear(prefix + "ffn_up" + suffix, hidden_size, ffn));
  KVCACHE_ASSIGN_OR_RETURN(block.down,
                           reader.Linear(prefix + "ffn_down" + suffix, ffn, hidden_size));
  return block;
}

void GatedFeedForward::Run(Pass& pass, const TensorView& h, const TensorView& out) const {
  // Both matrices read h in one call, so out may be h.
  const Pass::Scope scope(pass);
  const TensorView gated = pass.TakeHidden(gate.weight->outputs());
  const TensorView up_out = pass.TakeHidden(up.weight->outputs());
  pass.Linear(h, {{gate, gated}, {up, up_out}});
  pass.Gate(gated, up_out, activation);
  pass.Linear(gated, {{down, out}});
}

Result<PlainFeedForward> PlainFeedForward::Load(WeightReader& reader, const LayerParams& params,
                                                int layer) {
  const auto at = static_cast<std::size_t>(layer);
  const std::string prefix = LayerPrefix(layer);
  PlainFeedForward block;
  block.activation = params.activation;
  if (!params.xielu.empty()) block.xielu = params.xielu[at];
  KVCACHE_ASSIGN_OR_RETURN(block.up, reader.Linear(prefix + "ffn_up", params.hidden_size,
                                                   params.ffn[at], params.ffn_bias));
  KVCACHE_ASSIGN_OR_RETURN(block.down, reader.Linear(prefix + "ffn_down", params.ffn[at],
                                                     params.hidden_size, params.ffn_bias));
  return block;
}

void PlainFeedForward::Run(Pass& pass, const TensorView& h, const TensorView& out) const {
  const Pass::Scope scope(pass);
  const TensorView inner = pass.TakeHidden(up.weight->outputs());
  pass.Linear(h, {{up, inner}});
  xielu ? pass.Xielu(inner, *xielu) : pass.Activate(inner, activation);
  pass.Linear(inner, {{down, out}});
}

Result<SharedExpert> SharedExpert::Load(WeightReader& reader, const std::string& prefix,
                                        std::int64_t hidden_size, const ExpertParams& experts) {
  SharedExpert e;
  KVCACHE_ASSIGN_OR_RETURN(
      e.ffn, GatedFeedForward::Load(reader, prefix, hidden_size, experts.shared_ffn, "_shexp"));
  if (!experts.gates_shared) return e;
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

Result<FeedForward> FeedForward::Load(WeightReader& reader, const LayerParams& params,
                                      const ExpertParams& experts, int layer) {
  const std::string prefix = LayerPrefix(layer);
  FeedForward block;
  if (!experts.InLayer(layer) && !params.gated) {
    KVCACHE_ASSIGN_OR_RETURN(block.kind, PlainFeedForward::Load(reader, params, layer));
  } else if (!experts.InLayer(layer) || (reader.Has(prefix + "ffn_gate.weight") &&
                                         !reader.Has(prefix + "ffn_gate_inp.weight"))) {
    KVCACHE_ASSIGN_OR_RETURN(block.kind, GatedFeedForward::Load(reader, params, layer));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(block.kind,
                             Experts::Load(reader, prefix, params.hidden_size, experts));
  }
  if (experts.InLayer(layer) && experts.shared_ffn > 0) {
    KVCACHE_ASSIGN_OR_RETURN(block.shared,
                             SharedExpert::Load(reader, prefix, params.hidden_size, experts));
  }
  return block;
}

void FeedForward::RunKind(Pass& pass, ExpertPlan& plan, const TensorView& h,
                          const TensorView& out) const {
  if (const auto* const experts = std::get_if<Experts>(&kind)) {
    experts->Run(pass, plan, h, out);
  } else if (const auto* const plain = std::get_if<PlainFeedForward>(&kind)) {
    plain->Run(pass, h, out);
  } else {
    std::get<GatedFeedForward>(kind).Run(pass, h, out);
  }
}

void FeedForward::Run(Pass& pass, ExpertPlan& plan, const TensorView& h,
                      const TensorView& out) const {
  if (!shared.has_value()) return RunKind(pass, plan, h, out);
  const Pass::Scope scope(pass);
  // The first part must not overwrite h, which the shared network reads next.
  const TensorView first = pass.TakeHidden(h.dims[0]);
  RunKind(pass, plan, h, first);
  shared->Run(pass, h, out);
  pass.Add(out, first);
}

}  // namespace kvcache
