// deepseek2: latent attention, and experts in all layers except the first ones. A head's query and
// key have --head-dim values without rotation and --rope-dims with it; its value has --head-dim.
//
// The matrices behind the latent vectors keep the variance, in either layout of the file.
#include <algorithm>

#include "base/strings.h"
#include "make_model/families.h"
#include "make_model/tensor_list.h"

namespace kvcache::make_model {
namespace {

struct Sizes {
  explicit Sizes(const Shape& shape)
      : rank(shape.family.kv_rank > 0 ? shape.family.kv_rank : 64),
        rope(shape.family.rope_dims > 0 ? shape.family.rope_dims : 32),
        query(shape.head_dim + rope),
        shared(shape.family.shared_experts > 0 ? shape.family.shared_experts : 1) {}

  int rank;
  int rope;
  int query;
  int shared;
};

void AddAttentionKeys(const Shape& shape, GgufHeader& header) {
  const Sizes sizes(shape);
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("deepseek2.", key), static_cast<std::uint32_t>(value));
  };
  // Models without a q_rank lack the key. llama.cpp then demands the number of layers of those
  // models.
  set("attention.q_lora_rank", shape.family.q_rank);
  set("attention.kv_lora_rank", sizes.rank);
  set("rope.dimension_count", sizes.rope);
  if (shape.family.whole_kv) {
    set("attention.head_count_kv", shape.heads);
    set("attention.key_length", sizes.query);
    set("attention.value_length", shape.head_dim);
    return;
  }
  set("attention.head_count_kv", 1);
  set("attention.key_length", sizes.rank + sizes.rope);
  set("attention.value_length", sizes.rank);
  set("attention.key_length_mla", sizes.query);
  set("attention.value_length_mla", shape.head_dim);
}

void AddExpertKeys(const Shape& shape, GgufHeader& header) {
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("deepseek2.", key), static_cast<std::uint32_t>(value));
  };
  constexpr int kSoftmax = 1;
  constexpr int kSigmoid = 2;
  if (shape.expert_ffn == shape.ffn) set("expert_feed_forward_length", shape.expert_ffn);
  set("leading_dense_block_count", shape.family.dense_layers);
  set("expert_shared_count", Sizes(shape).shared);
  set("expert_gating_func", shape.family.sigmoid_experts ? kSigmoid : kSoftmax);
  header.SetBool("deepseek2.expert_weights_norm", shape.family.sigmoid_experts);
  header.SetFloat32("deepseek2.expert_weights_scale", 1.5f);
  if (shape.family.expert_groups == 0) return;
  set("expert_group_count", shape.family.expert_groups);
  set("expert_group_used_count", std::max(1, shape.family.expert_groups_used));
}

void AddAttention(const Shape& shape, const std::string& block, TensorList& list) {
  const Sizes sizes(shape);
  const float in = PerRoot(1.0f, shape.hidden_size);
  const float from_latent = PerRoot(1.0f, sizes.rank);
  const int q_rank = shape.family.q_rank;
  const int queries = shape.heads * sizes.query;
  list.Norm(block + "attn_norm.weight");
  if (q_rank > 0) {
    list.Matrix(block + "attn_q_a.weight", shape.hidden_size, q_rank, in);
    list.Vector(block + "attn_q_a_norm.weight", q_rank, Distribution::kNorm, 1.0f);
    list.Matrix(block + "attn_q_b.weight", q_rank, queries, PerRoot(kScoreDeviation, q_rank));
  } else {
    list.Matrix(block + "attn_q.weight", shape.hidden_size, queries,
                PerRoot(kScoreDeviation, shape.hidden_size));
  }
  list.Matrix(block + "attn_kv_a_mqa.weight", shape.hidden_size, sizes.rank + sizes.rope, in);
  list.Vector(block + "attn_kv_a_norm.weight", sizes.rank, Distribution::kNorm, 1.0f);
  if (shape.family.whole_kv) {
    list.Matrix(block + "attn_kv_b.weight", sizes.rank, shape.heads * 2 * shape.head_dim,
                from_latent);
  } else {
    list.Add({block + "attn_k_b.weight",
              {shape.head_dim, sizes.rank, shape.heads},
              Distribution::kNormal,
              from_latent});
    list.Add({block + "attn_v_b.weight",
              {sizes.rank, shape.head_dim, shape.heads},
              Distribution::kNormal,
              from_latent});
  }
  const int answers = shape.heads * shape.head_dim;
  list.Matrix(block + "attn_output.weight", answers, shape.hidden_size,
              PerRoot(list.embedding() * kAttentionGain, answers));
}

void AddFeedForward(const Shape& shape, int layer, const std::string& block, TensorList& list) {
  list.Norm(block + "ffn_norm.weight");
  if (layer < shape.family.dense_layers) return list.FeedForward(block, shape.ffn);
  list.Experts(block, shape.family.sigmoid_experts ? kEqualExpertGain : kFfnGain);
  if (shape.family.sigmoid_experts) {
    constexpr float kBias = 0.1f;
    list.Vector(block + "exp_probs_b.bias", shape.experts, Distribution::kNormal, kBias);
  }
  list.FeedForward(block, Sizes(shape).shared * shape.expert_ffn, "_shexp");
}

}  // namespace

void AddDeepSeek2(const Shape& shape, GgufHeader& header) {
  AddSizeMetadata("deepseek2", shape, header);
  AddAttentionKeys(shape, header);
  AddExpertKeys(shape, header);
  if (shape.rope_scaling == RopeScaling::kYarn) {
    header.SetFloat32("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f);
  }
}

std::vector<TensorSpec> DeepSeek2Tensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers + shape.family.nextn_layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (layer >= shape.layers) list.DraftHead(block);
    AddAttention(shape, block, list);
    AddFeedForward(shape, layer, block, list);
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
