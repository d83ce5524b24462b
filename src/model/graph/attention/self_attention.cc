#include "model/graph/attention/self_attention.h"

#include <string>
#include <utility>
#include <vector>

namespace kvcache {
namespace {

// Returns the weights with their sizes alone.
AttentionWeights EmptyAttention(const LayerParams& params, int layer) {
  const auto at = static_cast<std::size_t>(layer);
  AttentionWeights a;
  a.heads = params.heads[at];
  a.kv_heads = params.kv_heads[at];
  a.k_dim = params.k_dim;
  a.v_dim = params.v_dim;
  return a;
}

}  // namespace

Result<AttentionWeights> AttentionWeights::Load(WeightReader& reader, const LayerParams& params,
                                                int layer, Bias bias, Bias output_bias) {
  const std::string prefix = LayerPrefix(layer) + "attn_";
  if (!reader.Has(prefix + "qkv.weight")) {
    return Load(reader, params, layer,
                {prefix + "q", prefix + "k", prefix + "v", prefix + "output"}, bias, output_bias);
  }
  AttentionWeights a = EmptyAttention(params, layer);
  KVCACHE_ASSIGN_OR_RETURN(
      std::vector<Projection> qkv,
      reader.LinearParts(prefix + "qkv", params.hidden_size,
                         {a.heads * a.k_dim, a.kv_heads * a.k_dim, a.kv_heads * a.v_dim}, bias));
  a.q = std::move(qkv[0]);
  a.k = std::move(qkv[1]);
  a.v = std::move(qkv[2]);
  KVCACHE_ASSIGN_OR_RETURN(
      a.o, reader.Linear(prefix + "output", a.heads * a.v_dim, params.hidden_size, output_bias));
  return a;
}

Result<AttentionWeights> AttentionWeights::Load(WeightReader& reader, const LayerParams& params,
                                                int layer, const AttentionNames& names, Bias bias,
                                                Bias output_bias) {
  AttentionWeights a = EmptyAttention(params, layer);
  const std::int64_t size = params.hidden_size;
  KVCACHE_ASSIGN_OR_RETURN(a.q, reader.Linear(names.q, size, a.heads * a.k_dim, bias));
  KVCACHE_ASSIGN_OR_RETURN(a.k, reader.Linear(names.k, size, a.kv_heads * a.k_dim, bias));
  KVCACHE_ASSIGN_OR_RETURN(a.v, reader.Linear(names.v, size, a.kv_heads * a.v_dim, bias));
  KVCACHE_ASSIGN_OR_RETURN(a.o, reader.Linear(names.o, a.heads * a.v_dim, size, output_bias));
  return a;
}

AttentionViews TakeAttention(Pass& pass, const AttentionWeights& weights) {
  return {.q = pass.TakeHeads(weights.k_dim, weights.heads),
          .k = pass.TakeHeads(weights.k_dim, weights.kv_heads),
          .v = pass.TakeHeads(weights.v_dim, weights.kv_heads),
          .out = pass.TakeHeads(weights.v_dim, weights.heads)};
}

Result<SelfAttention> SelfAttention::Load(WeightReader& reader, const LayerParams& params,
                                          int layer, const SelfAttentionTensors& tensors) {
  const std::string prefix = LayerPrefix(layer) + "attn_";
  SelfAttention block;
  block.norms = tensors.norms;
  const auto norm = [&](const char* name, std::int64_t heads) {
    const std::int64_t size = params.k_dim * (tensors.norms == QkNorms::kRows ? heads : 1);
    return reader.RmsNorm(prefix + name, size, params.norm_epsilon);
  };
  KVCACHE_ASSIGN_OR_RETURN(
      block.weights,
      AttentionWeights::Load(reader, params, layer, tensors.bias, tensors.output_bias));
  if (tensors.row_layer_norms) {
    KVCACHE_RETURN_IF_ERROR(block.LoadRowNorms(reader, params, prefix));
  } else if (tensors.norms != QkNorms::kNone) {
    KVCACHE_ASSIGN_OR_RETURN(block.q_norm, norm("q_norm", block.weights.heads));
    KVCACHE_ASSIGN_OR_RETURN(block.k_norm, norm("k_norm", block.weights.kv_heads));
  }
  if (tensors.sinks) {
    KVCACHE_ASSIGN_OR_RETURN(block.sinks,
                             reader.Floats(prefix + "sinks.weight", block.weights.heads));
  }
  return block;
}

Status SelfAttention::LoadRowNorms(WeightReader& reader, const LayerParams& params,
                                   const std::string& prefix) {
  const auto take = [&](const char* name, std::int64_t heads, std::optional<Norm>& norm) -> Status {
    if (!reader.Has(prefix + name + ".weight")) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(norm, reader.LayerNorm(prefix + name, params.k_dim * heads,
                                                    params.norm_epsilon, Bias::kRequired));
    return Status::Ok();
  };
  KVCACHE_RETURN_IF_ERROR(take("q_norm", weights.heads, q_norm));
  return take("k_norm", weights.kv_heads, k_norm);
}

void SelfAttention::NormalizeHeads(Pass& pass, const TensorView& q, const TensorView& k) const {
  const bool rows = norms == QkNorms::kRows;
  if (q_norm.has_value()) pass.Normalize(rows ? Flatten(q) : q, *q_norm, rows ? Flatten(q) : q);
  if (k_norm.has_value()) pass.Normalize(rows ? Flatten(k) : k, *k_norm, rows ? Flatten(k) : k);
}

void SelfAttention::Run(Pass& pass, int layer, const TensorView& h,
                        const SelfAttentionOptions& options, const TensorView& out) const {
  // One call for the three products: the backend converts or quantises h once.
  const Pass::Scope scope(pass);
  const auto [q, k, v, attended] = TakeAttention(pass, weights);
  pass.Linear(h, {{weights.q, q}, {weights.k, k}, {weights.v, v}});
  if (norms != QkNorms::kRotatedHeads) NormalizeHeads(pass, q, k);
  pass.Rope(q, options.rope);
  pass.Rope(k, options.rope);
  if (norms == QkNorms::kRotatedHeads) NormalizeHeads(pass, q, k);
  if (!options.query_factors.empty()) pass.ScaleTokens(q, options.query_factors);
  AttentionOptions attention = options.attention;
  attention.sinks = sinks;
  pass.Attention(layer, q, k, v, attention, attended);
  pass.Linear(attended, {{weights.o, out}});
}

}  // namespace kvcache
