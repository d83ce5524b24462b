// lfm2 and lfm2moe: short convolutions between two gates; every n-th layer is attention with head
// norms. The last norm has another name.
#include <cmath>

#include "base/strings.h"
#include "make_model/families.h"
#include "make_model/hybrid.h"

namespace kvcache::make_model {
namespace {

constexpr int kTaps = 3;
// Makes up for a product of three normal values, one of them a sum over taps: its mean square is
// about 2.
constexpr float kConvGain = 0.6f;

void AddConvolution(const Shape& shape, const std::string& block, TensorList& list) {
  list.Norm(block + "attn_norm.weight");
  list.Matrix(block + "shortconv.in_proj.weight", shape.hidden_size, 3 * shape.hidden_size,
              PerRoot(1.0f, shape.hidden_size));
  AddTaps(list, block + "shortconv.conv.weight", kTaps, shape.hidden_size);
  list.Matrix(block + "shortconv.out_proj.weight", shape.hidden_size, shape.hidden_size,
              PerRoot(list.embedding() * kConvGain, shape.hidden_size));
}

}  // namespace

void AddLfm2(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("lfm2", shape, header, {.kv_heads = KvHeadsByLayer(shape)});
  header.SetUint32("lfm2.shortconv.l_cache", kTaps);
  AddWindows("lfm2", shape, header);
}

void AddLfm2Moe(const Shape& shape, GgufHeader& header) {
  constexpr int kSigmoid = 2;
  AddDecoderMetadata("lfm2moe", shape, header, {.kv_heads = KvHeadsByLayer(shape)});
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("lfm2moe.", key), static_cast<std::uint32_t>(value));
  };
  set("shortconv.l_cache", kTaps);
  set("leading_dense_block_count", shape.family.dense_layers);
  set("expert_gating_func", kSigmoid);
  if (shape.expert_ffn == shape.ffn) set("expert_feed_forward_length", shape.expert_ffn);
}

std::vector<TensorSpec> Lfm2Tensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (IsAttention(shape, layer)) {
      list.Attention(block, AttentionExtras::kHeadNorms);
    } else {
      AddConvolution(shape, block, list);
    }
    list.Norm(block + "ffn_norm.weight");
    if (shape.experts == 0 || layer < shape.family.dense_layers) {
      list.FeedForward(block, shape.ffn);
    } else {
      list.Experts(block, kEqualExpertGain);
      list.Vector(block + "exp_probs_b.bias", shape.experts, Distribution::kNormal, 0.1f);
    }
  }
  list.Output("token_embd_norm.weight");
  return list.Take();
}

}  // namespace kvcache::make_model
