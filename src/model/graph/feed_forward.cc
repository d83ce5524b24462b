#include "model/graph/feed_forward.h"

#include <utility>

namespace kvcache {

Result<GatedFeedForward> GatedFeedForward::Load(WeightReader& reader, const LayerParams& params,
                                                int layer) {
  return Load(reader, LayerPrefix(layer), params.hidden_size,
              params.ffn[static_cast<std::size_t>(layer)]);
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

Result<FeedForward> FeedForward::Load(WeightReader& reader, const LayerParams& params,
                                      const ExpertParams& experts, int layer) {
  const std::string prefix = LayerPrefix(layer);
  if (experts.count > 0 && reader.Has(prefix + "ffn_gate_inp.weight")) {
    KVCACHE_ASSIGN_OR_RETURN(Experts block,
                             Experts::Load(reader, prefix, params.hidden_size, experts));
    return FeedForward{std::move(block)};
  }
  KVCACHE_ASSIGN_OR_RETURN(GatedFeedForward block, GatedFeedForward::Load(reader, params, layer));
  return FeedForward{std::move(block)};
}

void FeedForward::Run(Pass& pass, ExpertPlan& plan, const TensorView& h,
                      const TensorView& out) const {
  if (const auto* const experts = std::get_if<Experts>(&kind)) {
    experts->Run(pass, plan, h, out);
  } else {
    std::get<GatedFeedForward>(kind).Run(pass, h, out);
  }
}

}  // namespace kvcache
