#include "model/families/gemma4_layer.h"
#include "base/errors.h"

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

Result<Gemma4Layer> Gemma4Layer::Load(WeightReader& reader, const LayerParams& params, int index,
                                      int dim) {
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

void Gemma4Layer::AddAttended(Pass& pass, const TensorView& h, const TensorView& x) const {
  pass.RmsNorm(h, attn_post_norm, h);
  pass.Add(x, h);
  pass.RmsNorm(x, ffn_norm, h);
  ffn.Run(pass, h, h);
  pass.RmsNorm(h, ffn_post_norm, h);
  pass.Add(x, h);
}

}  // namespace kvcache
