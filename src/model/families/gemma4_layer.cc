#include "model/families/gemma4_layer.h"
#include "base/errors.h"

#include <cmath>
#include <string>

namespace kvcache {

Result<Gemma4Kinds> Gemma4Kinds::Read(KeyReader& keys, const LayerParams& params,
                                      WeightReader& weights) {
  Gemma4Kinds kinds;
  kinds.dim = params.k_dim;
  KVCACHE_ASSIGN_OR_RETURN(kinds.spans, ReadAttentionSpans(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(kinds.window_dim,
                           keys.IntOr("attention.key_length_swa", 8192, params.k_dim));
  KVCACHE_ASSIGN_OR_RETURN(const int window_v_dim,
                           keys.IntOr("attention.value_length_swa", 8192, params.v_dim));
  if (params.k_dim != params.v_dim) return keys.Unsupported("attention.value_length");
  if (kinds.window_dim != window_v_dim) return keys.Unsupported("attention.value_length_swa");
  constexpr auto kHalves = RopeParams::Pairing::kHalves;
  KVCACHE_ASSIGN_OR_RETURN(kinds.rope, ReadRope(keys, params, kHalves, weights));
  KVCACHE_ASSIGN_OR_RETURN(kinds.window_rope, ReadWindowRope(keys, kinds.window_dim, kHalves));
  return kinds;
}

Result<Gemma4Experts> Gemma4Experts::Load(WeightReader& reader, const LayerParams& params,
                                          const ExpertParams& experts, int index) {
  const std::string prefix = LayerPrefix(index);
  const auto norm = [&](const char* name) {
    return reader.RmsNorm(prefix + name, params.hidden_size, params.norm_epsilon);
  };
  Gemma4Experts e;
  KVCACHE_ASSIGN_OR_RETURN(e.experts, Experts::Load(reader, prefix, params.hidden_size, experts));
  e.router_norm.epsilon = params.norm_epsilon;
  KVCACHE_ASSIGN_OR_RETURN(e.router_norm.weight,
                           reader.Vector(prefix + "ffn_gate_inp.scale", params.hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(e.in_norm, norm("pre_ffw_norm_2"));
  KVCACHE_ASSIGN_OR_RETURN(e.dense_norm, norm("post_ffw_norm_1"));
  KVCACHE_ASSIGN_OR_RETURN(e.out_norm, norm("post_ffw_norm_2"));
  return e;
}

void Gemma4Experts::AddResult(Pass& pass, ExpertPlan& plan, const TensorView& x,
                              const TensorView& h) const {
  const Pass::Scope scope(pass);
  const TensorView logits = pass.TakeHidden(experts.params.count);
  const TensorView m = pass.TakeHidden(x.dims[0]);
  pass.RmsNorm(x, router_norm, m);
  pass.Scale(m, 1.0f / std::sqrt(static_cast<float>(x.dims[0])));
  pass.Linear(m, {{experts.router, logits}});
  pass.RmsNorm(x, in_norm, m);
  experts.RunRouted(pass, plan, logits, m, m);
  pass.RmsNorm(m, out_norm, m);
  pass.RmsNorm(h, dense_norm, h);
  pass.Add(h, m);
}

Result<Gemma4Layer> Gemma4Layer::Load(WeightReader& reader, const LayerParams& params,
                                      const ExpertParams& experts, int index, int dim) {
  const std::string prefix = LayerPrefix(index);
  const auto at = static_cast<std::size_t>(index);
  const std::int64_t size = params.hidden_size;
  const std::int64_t queries = std::int64_t{params.heads[at]} * dim;
  const auto norm = [&](const char* name, std::int64_t length) {
    return reader.RmsNorm(prefix + name, length, params.norm_epsilon);
  };
  Gemma4Layer layer;
  layer.heads = params.heads[at];
  layer.dim = dim;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm, norm("attn_norm", size));
  KVCACHE_ASSIGN_OR_RETURN(layer.q, reader.Linear(prefix + "attn_q", size, queries));
  KVCACHE_ASSIGN_OR_RETURN(layer.q_norm, norm("attn_q_norm", dim));
  KVCACHE_ASSIGN_OR_RETURN(layer.o, reader.Linear(prefix + "attn_output", queries, size));
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_post_norm, norm("post_attention_norm", size));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, norm("ffn_norm", size));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, GatedFeedForward::Load(reader, prefix, size, params.ffn[at]));
  layer.ffn.activation = Activation::kGelu;
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_post_norm, norm("post_ffw_norm", size));
  if (experts.count > 0 && reader.Has(prefix + "ffn_gate_inp.weight")) {
    KVCACHE_ASSIGN_OR_RETURN(layer.experts, Gemma4Experts::Load(reader, params, experts, index));
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> scale,
                           reader.FloatsIfPresent(prefix + "layer_output_scale.weight", 1));
  if (!scale.empty()) layer.scale = scale[0];
  return layer;
}

void Gemma4Layer::Queries(Pass& pass, const TensorView& h, const RopeParams& rope,
                          const TensorView& to) const {
  pass.Linear(h, {{q, to}});
  pass.RmsNorm(to, q_norm, to);
  pass.Rope(to, rope);
}

void Gemma4Layer::AddAttended(Pass& pass, ExpertPlan& plan, const TensorView& h,
                              const TensorView& x) const {
  pass.RmsNorm(h, attn_post_norm, h);
  pass.Add(x, h);
  pass.RmsNorm(x, ffn_norm, h);
  ffn.Run(pass, h, h);
  if (experts.has_value()) experts->AddResult(pass, plan, x, h);
  pass.RmsNorm(h, ffn_post_norm, h);
  pass.Add(x, h);
}

}  // namespace kvcache
