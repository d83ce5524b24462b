#include "model/graph/blocks.h"

#include <utility>

#include "base/strings.h"

namespace kvcache {

std::string LayerPrefix(int layer) {
  return StrCat("blk.", layer, ".");
}

Result<AttentionWeights> AttentionWeights::Load(WeightReader& reader, const LayerParams& params,
                                                int layer, Bias bias, Bias output_bias) {
  const auto at = static_cast<std::size_t>(layer);
  const std::string prefix = LayerPrefix(layer) + "attn_";
  AttentionWeights a;
  a.heads = params.heads[at];
  a.kv_heads = params.kv_heads[at];
  a.k_dim = params.k_dim;
  a.v_dim = params.v_dim;
  const std::int64_t hidden_size = params.hidden_size;
  KVCACHE_ASSIGN_OR_RETURN(a.q, reader.Linear(prefix + "q", hidden_size, a.heads * a.k_dim, bias));
  KVCACHE_ASSIGN_OR_RETURN(a.k,
                           reader.Linear(prefix + "k", hidden_size, a.kv_heads * a.k_dim, bias));
  KVCACHE_ASSIGN_OR_RETURN(a.v,
                           reader.Linear(prefix + "v", hidden_size, a.kv_heads * a.v_dim, bias));
  KVCACHE_ASSIGN_OR_RETURN(
      a.o, reader.Linear(prefix + "output", a.heads * a.v_dim, hidden_size, output_bias));
  return a;
}

AttentionViews TakeAttention(Pass& pass, const AttentionWeights& weights) {
  return {.q = pass.TakeHeads(weights.k_dim, weights.heads),
          .k = pass.TakeHeads(weights.k_dim, weights.kv_heads),
          .v = pass.TakeHeads(weights.v_dim, weights.kv_heads),
          .out = pass.TakeHeads(weights.v_dim, weights.heads)};
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
  const Pass::Scope scope(pass);
  const TensorView gated = pass.TakeHidden(gate.weight->outputs());
  const TensorView upper = pass.TakeHidden(up.weight->outputs());
  pass.Linear(h, {{gate, gated}, {up, upper}});
  pass.Gate(gated, upper, activation);
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
  KVCACHE_ASSIGN_OR_RETURN(GatedFeedForward block,
                           GatedFeedForward::Load(reader, prefix, params.hidden_size,
                                                  params.ffn[static_cast<std::size_t>(layer)]));
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
