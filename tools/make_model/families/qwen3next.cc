// qwen3next, qwen35, qwen35moe: gated delta nets; every n-th layer is attention with gates. All layers
// have experts, one of them shared by all tokens; qwen35 has none. A quarter of each attention head is
// rotated, in the latter two by sections that leave out a pair.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/strings.h"
#include "make_model/families.h"
#include "make_model/hybrid.h"

namespace kvcache::make_model {
namespace {

constexpr float kGatedGain = 2.0f;  // makes up for gates, which halve their values on average

enum class Generation : std::uint8_t { kNext, k35 };

void AddDeltaNet(const Shape& shape, Generation generation, const std::string& block,
                 TensorList& list) {
  const HybridSizes sizes = HybridSizesOf(shape);
  const float in = PerRoot(1.0f, shape.hidden_size);
  list.Matrix(block + "attn_qkv.weight", shape.hidden_size, sizes.channels(), in);
  list.Matrix(block + "attn_gate.weight", shape.hidden_size, sizes.inner(), in);
  if (generation == Generation::kNext) {
    list.Matrix(block + "ssm_ba.weight", shape.hidden_size, 2 * sizes.heads, in);
  } else {
    list.Matrix(block + "ssm_beta.weight", shape.hidden_size, sizes.heads, in);
    list.Matrix(block + "ssm_alpha.weight", shape.hidden_size, sizes.heads, in);
  }
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

void AddMetadata(std::string_view name, const Shape& shape, GgufHeader& header) {
  const HybridSizes sizes = HybridSizesOf(shape);
  AddDecoderMetadata(name, shape, header, {.rope_dims = shape.head_dim / 4 / 2 * 2});
  AddStateMetadata(name, sizes, header);
  header.SetUint32(StrCat(name, ".full_attention_interval"),
                   static_cast<std::uint32_t>(sizes.attention_step));
}

void AddExpertMetadata(std::string_view name, const Shape& shape, GgufHeader& header) {
  const auto ffn = static_cast<std::uint32_t>(shape.expert_ffn);
  header.SetUint32(StrCat(name, ".expert_shared_feed_forward_length"), ffn);
  if (shape.expert_ffn == shape.ffn) {
    header.SetUint32(StrCat(name, ".expert_feed_forward_length"), ffn);
  }
}

// The sections of the pairs, as in published files: the first coordinates have as many, and the last pair
// belongs to none.
void AddSections(std::string_view name, const Shape& shape, GgufHeader& header) {
  const int pairs = shape.head_dim / 4 / 2;
  const int each = std::max(1, pairs / 3);
  header.SetInts(StrCat(name, ".rope.dimension_sections"),
                 std::vector<std::int32_t>{each, each, std::max(0, pairs - 2 * each - 1), 1});
}

std::vector<TensorSpec> Tensors(const Shape& shape, Generation generation) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers + shape.family.nextn_layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    const bool head = layer >= shape.layers;
    if (head) list.DraftHead(block);
    list.Norm(block + "attn_norm.weight");
    head || IsAttention(shape, layer) ? AddGatedAttention(shape, block, list)
                                      : AddDeltaNet(shape, generation, block, list);
    list.Norm(block + "post_attention_norm.weight");
    if (shape.experts == 0) {
      list.FeedForward(block, shape.ffn);
      continue;
    }
    list.Experts(block);
    list.FeedForward(block, shape.expert_ffn, "_shexp");
    list.Vector(block + "ffn_gate_inp_shexp.weight", shape.hidden_size, Distribution::kNormal,
                PerRoot(1.0f, shape.hidden_size));
  }
  list.Output();
  return list.Take();
}

}  // namespace

void AddQwen3Next(const Shape& shape, GgufHeader& header) {
  AddMetadata("qwen3next", shape, header);
  AddExpertMetadata("qwen3next", shape, header);
}
void AddQwen35(const Shape& shape, GgufHeader& header) {
  AddMetadata("qwen35", shape, header);
  AddSections("qwen35", shape, header);
}
void AddQwen35Moe(const Shape& shape, GgufHeader& header) {
  AddMetadata("qwen35moe", shape, header);
  AddExpertMetadata("qwen35moe", shape, header);
  AddSections("qwen35moe", shape, header);
}

std::vector<TensorSpec> Qwen3NextTensors(const Shape& shape) {
  return Tensors(shape, Generation::kNext);
}
std::vector<TensorSpec> Qwen35Tensors(const Shape& shape) {
  return Tensors(shape, Generation::k35);
}

}  // namespace kvcache::make_model
