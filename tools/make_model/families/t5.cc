// t5: an encoder and a decoder with the same number of layers, unless --decoder-layers says
// otherwise. The heads together may differ in size from the hidden size. --ungated gives the first
// T5's feed-forward part.
//
// Scores are not scaled, so queries are smaller by √head_dim. The biases by distance have the
// scores' deviation.
#include "make_model/families.h"

#include <cmath>

#include "base/strings.h"
#include "make_model/tensor_list.h"

namespace kvcache::make_model {
namespace {

constexpr int kBuckets = 32;

int DecoderLayers(const Shape& shape) {
  return shape.family.decoder_layers > 0 ? shape.family.decoder_layers : shape.layers;
}

void AddAttention(const Shape& shape, const std::string& prefix, TensorList& list) {
  const int inner = shape.heads * shape.head_dim;
  const float in = PerRoot(1.0f, shape.hidden_size);
  list.Norm(prefix + "_norm.weight");
  list.Matrix(prefix + "_q.weight", shape.hidden_size, inner,
              PerRoot(PerRoot(kScoreDeviation, shape.hidden_size), shape.head_dim));
  list.Matrix(prefix + "_k.weight", shape.hidden_size, inner, in);
  list.Matrix(prefix + "_v.weight", shape.hidden_size, inner, in);
  list.Matrix(prefix + "_o.weight", inner, shape.hidden_size,
              PerRoot(list.embedding() * kAttentionGain, inner));
}

void AddBias(const Shape& shape, const std::string& block, TensorList& list) {
  list.Add({.name = block + "attn_rel_b.weight",
            .dims = {shape.heads, kBuckets},
            .scale = kScoreDeviation,
            .keep_f32 = true});
}

void AddFeedForward(const Shape& shape, const std::string& block, TensorList& list) {
  list.Norm(block + "ffn_norm.weight");
  if (!shape.family.ungated) return list.FeedForward(block, shape.ffn);
  list.Matrix(block + "ffn_up.weight", shape.hidden_size, shape.ffn,
              PerRoot(1.0f, shape.hidden_size));
  list.Matrix(block + "ffn_down.weight", shape.ffn, shape.hidden_size,
              PerRoot(list.embedding() * kFfnGain, shape.ffn));
}

}  // namespace

void AddT5(const Shape& shape, GgufHeader& header) {
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("t5.", key), static_cast<std::uint32_t>(value));
  };
  set("block_count", shape.layers);
  set("decoder_block_count", DecoderLayers(shape));
  set("context_length", shape.context);
  set("embedding_length", shape.hidden_size);
  set("feed_forward_length", shape.ffn);
  set("attention.head_count", shape.heads);
  set("attention.key_length", shape.head_dim);
  set("attention.value_length", shape.head_dim);
  set("attention.relative_buckets_count", kBuckets);
  set("decoder_start_token_id", 0);
  header.SetFloat32("t5.attention.layer_norm_epsilon", 1e-6f);
  header.SetFloat32("t5.attention.layer_norm_rms_epsilon", 1e-6f);
}

std::vector<TensorSpec> T5Tensors(const Shape& shape) {
  TensorList list(shape);
  list.Matrix("token_embd.weight", shape.hidden_size, shape.vocab, list.embedding());
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("enc.blk.", layer, ".");
    AddAttention(shape, block + "attn", list);
    if (layer == 0) AddBias(shape, block, list);
    AddFeedForward(shape, block, list);
  }
  list.Norm("enc.output_norm.weight");
  for (int layer = 0; layer < DecoderLayers(shape); ++layer) {
    const std::string block = StrCat("dec.blk.", layer, ".");
    AddAttention(shape, block + "attn", list);
    if (layer == 0) AddBias(shape, block, list);
    AddAttention(shape, block + "cross_attn", list);
    AddFeedForward(shape, block, list);
  }
  // Tied logits are divided by √hidden_size.
  const bool tied = shape.output == Output::kTied;
  list.Vector("dec.output_norm.weight", shape.hidden_size, Distribution::kSignedNorm,
              tied ? std::sqrt(static_cast<float>(shape.hidden_size)) : 1.0f);
  if (!tied) {
    list.Matrix("output.weight", shape.hidden_size, shape.vocab,
                PerRoot(kLogitDeviation, shape.hidden_size));
  }
  return list.Take();
}

}  // namespace kvcache::make_model
