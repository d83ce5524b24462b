#include "model/graph/block_decoder.h"

namespace kvcache {

Status BlockDecoder::Reserve(int max_batch) {
  if (blocks_.query_factors) KVCACHE_RETURN_IF_ERROR(blocks_.query_factors->Reserve(max_batch));
  return Decoder::Reserve(max_batch);
}

Status BlockDecoder::LoadMixer(WeightReader& reader, int index, SelfAttention* attention) {
  KVCACHE_ASSIGN_OR_RETURN(*attention,
                           SelfAttention::Load(reader, params(), index, blocks_.attention));
  return Status::Ok();
}

Status BlockDecoder::LoadLayer(WeightReader& reader, int index) {
  const auto norm = [&](std::string_view name) {
    return reader.RmsNorm(LayerPrefix(index).append(name), params().hidden_size,
                          params().norm_epsilon);
  };
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm, norm("attn_norm"));
  KVCACHE_RETURN_IF_ERROR(LoadMixer(reader, index, &layer.attention));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, norm(blocks_.ffn_norm));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, FeedForward::Load(reader, params(), blocks_.experts, index));
  if (blocks_.post_norms) {
    KVCACHE_ASSIGN_OR_RETURN(layer.attn_post_norm, norm("post_attention_norm"));
    KVCACHE_ASSIGN_OR_RETURN(layer.ffn_post_norm, norm("post_ffw_norm"));
  }
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

std::span<const float> BlockDecoder::QueryFactorsOf(const Pass& pass) {
  if (!blocks_.query_factors) return {};
  return blocks_.query_factors->At(pass.positions());  // a measuring pass has no positions
}

void BlockDecoder::RunMixer(Pass& pass, int index, const TensorView& h) {
  layer(index).attention.Run(
      pass, index, h,
      {.rope = rope(index),
       .attention = {.scale = params().attention_scale, .soft_cap = blocks_.soft_cap},
       .query_factors = QueryFactorsOf(pass)},
      h);
}

void BlockDecoder::AddResult(Pass& pass, const std::optional<Norm>& norm, const TensorView& h,
                             const TensorView& x) const {
  if (norm) pass.RmsNorm(h, *norm, h);
  if (blocks_.residual_scale != 1.0f) pass.Scale(h, blocks_.residual_scale);
  pass.Add(x, h);
}

void BlockDecoder::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer(index).attn_norm, h);
  RunMixer(pass, index, h);
  AddResult(pass, layer(index).attn_post_norm, h, x);

  pass.RmsNorm(x, layer(index).ffn_norm, h);
  RunFeedForward(pass, index, h);
  AddResult(pass, layer(index).ffn_post_norm, h, x);
}

}  // namespace kvcache
