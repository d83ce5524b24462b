// qwen3next: gated delta nets; every n-th layer is attention with gates. All layers have experts,
// one of them shared by all tokens. A quarter of each attention head is rotated.
#include <cmath>

#include "base/strings.h"
#include "make_model/families.h"
#include "make_model/hybrid.h"

namespace kvcache::make_model {
namespace {

constexpr float kGatedGain = 2.0f;  // makes up for gates, which halve their values on average

void AddDeltaNet(const Shape& shape, const std::string& block, TensorList& list) {
  const HybridSizes sizes = HybridSizesOf(shape);
  const float in = PerRoot(1.0f, shape.hidden_size);
  list.Matrix(block + "attn_qkv.weight", shape.hidden_size, sizes.channels(), in);
  list.Matrix(block + "attn_gate.weight", shape.hidden_size, sizes.inner(), in);
  list.Matrix(block + "ssm_ba.weight", shape.hidden_size, 2 * sizes.heads, in);
  AddTaps(list, block + "ssm_conv1d.weight", sizes.taps, sizes.channels());
  list.Vector(block + "ssm_dt.bias", sizes.heads, Distribution::kNormal, kBiasDeviation);
  AddRates(list, block + "ssm_a", {sizes.heads});
  list.Vector(block + "ssm_norm.weight", sizes.v_dim, Distribution::kNorm, 1.0f);
  list.Matrix(block + "ssm_out.weight", sizes.inner(), shape.hidden_size,
              PerRoot(list.embedding() * kGatedGain, sizes.inner()));
}

void AddGatedAttention(const Shape& shape, const std::string& block, TensorList& list) {
  const int queries = shape.heads * shape.head_dim;
  const int keys = shape.kv_heads * shape.head_dim;
  const float in = PerRoot(1.0f, shape.hidden_size);
  const float norm = std::sqrt(kScoreDeviation);
  list.Matrix(block + "attn_q.weight", shape.hidden_size, 2 * queries, in);
  list.Matrix(block + "attn_k.weight", shape.hidden_size, keys, in);
  list.Matrix(block + "attn_v.weight", shape.hidden_size, keys, in);
  list.Matrix(block + "attn_output.weight", queries, shape.hidden_size,
              PerRoot(list.embedding() * kGatedGain * kAttentionGain, queries));
  list.Vector(block + "attn_q_norm.weight", shape.head_dim, Distribution::kNorm, norm);
  list.Vector(block + "attn_k_norm.weight", shape.head_dim, Distribution::kNorm, norm);
}

}  // namespace

void AddQwen3Next(const Shape& shape, GgufHeader& header) {
  const HybridSizes sizes = HybridSizesOf(shape);
  AddDecoderMetadata("qwen3next", shape, header, {.rope_dims = shape.head_dim / 4 / 2 * 2});
  AddStateMetadata("qwen3next", sizes, header);
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("qwen3next.", key), static_cast<std::uint32_t>(value));
  };
  set("full_attention_interval", sizes.attention_step);
  set("expert_shared_feed_forward_length", shape.expert_ffn);
  if (shape.expert_ffn == shape.ffn) set("expert_feed_forward_length", shape.expert_ffn);
}

std::vector<TensorSpec> Qwen3NextTensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers + shape.family.nextn_layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    const bool head = layer >= shape.layers;
    if (head) list.DraftHead(block);
    list.Norm(block + "attn_norm.weight");
    head || IsAttention(shape, layer) ? AddGatedAttention(shape, block, list)
                                      : AddDeltaNet(shape, block, list);
    list.Norm(block + "post_attention_norm.weight");
    list.Experts(block);
    list.FeedForward(block, shape.expert_ffn, "_shexp");
    list.Vector(block + "ffn_gate_inp_shexp.weight", shape.hidden_size, Distribution::kNormal,
                PerRoot(1.0f, shape.hidden_size));
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
