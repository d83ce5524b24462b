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
  const auto take = [&](std::string_view name, std::optional<Norm>& norm) -> Status {
    KVCACHE_ASSIGN_OR_RETURN(norm, reader.RmsNorm(LayerPrefix(index).append(name),
                                                  params().hidden_size, params().norm_epsilon));
    norm->kind = params().norm_kind;
    return Status::Ok();
  };
  Layer layer;
  const bool lacks_norm = blocks_.first_norm_optional && index == 0 &&
                          !reader.Has(LayerPrefix(index).append("attn_norm.weight"));
  if (blocks_.pre_norms && !lacks_norm) {
    KVCACHE_RETURN_IF_ERROR(take("attn_norm", layer.attn_norm));
  }
  KVCACHE_RETURN_IF_ERROR(LoadMixer(reader, index, &layer.attention));
  if (blocks_.pre_norms && blocks_.branches == Branches::kInTurn) {
    KVCACHE_RETURN_IF_ERROR(take(blocks_.ffn_norm, layer.ffn_norm));
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, FeedForward::Load(reader, params(), blocks_.experts, index));
  if (blocks_.post_norms) {
    KVCACHE_RETURN_IF_ERROR(take("post_attention_norm", layer.attn_post_norm));
    KVCACHE_RETURN_IF_ERROR(take("post_ffw_norm", layer.ffn_post_norm));
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

namespace {

// Leaves in h what a block reads of x.
void TakeInput(Pass& pass, const std::optional<Norm>& norm, const TensorView& x,
               const TensorView& h) {
  norm ? pass.Normalize(x, *norm, h) : pass.Copy(x, h);
}

}  // namespace

void BlockDecoder::AddResult(Pass& pass, const std::optional<Norm>& norm, const TensorView& h,
                             const TensorView& x) const {
  if (norm) pass.Normalize(h, *norm, h);
  if (blocks_.residual_scale != 1.0f) pass.Scale(h, blocks_.residual_scale);
  pass.Add(x, h);
}

void BlockDecoder::RunParallel(Pass& pass, int index, const TensorView& x) {
  const Pass::Scope scope(pass);
  const TensorView attended = pass.TakeHidden(params().hidden_size);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  TakeInput(pass, layer(index).attn_norm, x, attended);
  pass.Copy(attended, h);
  RunMixer(pass, index, attended);
  RunFeedForward(pass, index, h);
  AddResult(pass, layer(index).ffn_post_norm, h, x);
  AddResult(pass, layer(index).attn_post_norm, attended, x);
}

void BlockDecoder::RunLayer(Pass& pass, int index, const TensorView& x) {
  if (blocks_.branches == Branches::kParallel) return RunParallel(pass, index, x);
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  TakeInput(pass, layer(index).attn_norm, x, h);
  RunMixer(pass, index, h);
  AddResult(pass, layer(index).attn_post_norm, h, x);

  TakeInput(pass, layer(index).ffn_norm, x, h);
  RunFeedForward(pass, index, h);
  AddResult(pass, layer(index).ffn_post_norm, h, x);
}

}  // namespace kvcache
