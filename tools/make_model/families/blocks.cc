#include "make_model/families/blocks.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/strings.h"

namespace kvcache::make_model {
namespace {

// The deviation of a branch whose result is normed, in units of the embedding's.
constexpr float kAddedByBranch = 0.7f;

Shape Fitted(const BlockForm& form, Shape shape) {
  if (form.all_heads_have_keys) shape.kv_heads = shape.heads;
  if (form.wide_experts) shape.expert_ffn = shape.ffn;
  if (form.output) shape.output = *form.output;
  return shape;
}

void SetExpertKeys(const BlockForm& form, const Shape& shape, GgufHeader& header) {
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat(form.name, ".", key), static_cast<std::uint32_t>(value));
  };
  if (shape.expert_ffn == shape.ffn) set("expert_feed_forward_length", shape.expert_ffn);
  if (form.experts != ExpertKeys::kSigmoid) return;
  constexpr int kSigmoid = 2;
  set("expert_gating_func", kSigmoid);
  set("leading_dense_block_count", shape.family.dense_layers);
  set("expert_shared_count", 1);
  header.SetBool(StrCat(form.name, ".expert_weights_norm"), true);
  header.SetFloat32(StrCat(form.name, ".expert_weights_scale"), 1.5f);
}

// One matrix, or several of them one after another, for each of `names`.
void AddProjections(const BlockForm& form, const Shape& shape, const std::string& block,
                    TensorList& list) {
  const int queries = shape.heads * shape.head_dim;
  const int keys = shape.kv_heads * shape.head_dim;
  const float in = PerRoot(std::sqrt(kScoreDeviation), shape.hidden_size);
  struct Part {
    const char* name;
    int outputs;
  };
  const std::vector<Part> parts =
      form.fused_qkv ? std::vector<Part>{{"attn_qkv", queries + 2 * keys}}
                     : std::vector<Part>{{"attn_q", queries}, {"attn_k", keys}, {"attn_v", keys}};
  for (const Part& part : parts) {
    list.Matrix(StrCat(block, part.name, ".weight"), shape.hidden_size, part.outputs, in);
    if (!form.biases) continue;
    list.Vector(StrCat(block, part.name, ".bias"), part.outputs, Distribution::kNormal,
                kBiasDeviation);
  }
  list.Matrix(block + "attn_output.weight", queries, shape.hidden_size,
              PerRoot(list.embedding() * kAttentionGain, queries));
  if (form.key_norms == KeyNorms::kNone) return;
  const bool rows = form.key_norms == KeyNorms::kRows;
  const float scale = std::sqrt(kScoreDeviation);
  list.Vector(block + "attn_q_norm.weight", rows ? queries : shape.head_dim, Distribution::kNorm,
              scale);
  list.Vector(block + "attn_k_norm.weight", rows ? keys : shape.head_dim, Distribution::kNorm,
              scale);
}

void AddExperts(const BlockForm& form, const Shape& shape, const std::string& block,
                TensorList& list) {
  constexpr float kBias = 0.1f;
  list.Experts(block, form.experts == ExpertKeys::kPlain ? kFfnGain : kEqualExpertGain);
  if (form.experts != ExpertKeys::kPlain) {
    list.Vector(block + "exp_probs_b.bias", shape.experts, Distribution::kNormal, kBias);
  }
  if (form.shared_expert) list.FeedForward(block, shape.expert_ffn, "_shexp");
}

void AddFeedForward(const BlockForm& form, const Shape& shape, int layer, const std::string& block,
                    TensorList& list) {
  if (shape.experts > 0 && layer >= shape.family.dense_layers) {
    return AddExperts(form, shape, block, list);
  }
  if (!form.fused_up && !form.ungated) return list.FeedForward(block, shape.ffn);
  // xIELU's square makes values larger than a gate does.
  const float gain = form.ungated ? 0.4f * kFfnGain : kFfnGain;
  list.Matrix(block + "ffn_up.weight", shape.hidden_size, (form.fused_up ? 2 : 1) * shape.ffn,
              PerRoot(1.0f, shape.hidden_size));
  list.Matrix(block + "ffn_down.weight", shape.ffn, shape.hidden_size,
              PerRoot(list.embedding() * gain, shape.ffn));
}

void AddLayer(const BlockForm& form, const Shape& shape, int layer, TensorList& list) {
  const std::string block = StrCat("blk.", layer, ".");
  const auto post_norm = [&](const char* name) {
    if (!form.post_norms) return;
    list.Vector(block + name, shape.hidden_size, Distribution::kNorm,
                kAddedByBranch * list.embedding());
  };
  if (layer >= shape.layers) list.DraftHead(block, form.head_norm);
  if (form.pre_norms) list.Norm(block + "attn_norm.weight");
  AddProjections(form, shape, block, list);
  post_norm("post_attention_norm.weight");
  if (form.pre_norms && !form.parallel) list.Norm(StrCat(block, form.ffn_norm));
  AddFeedForward(form, shape, layer, block, list);
  post_norm("post_ffw_norm.weight");
}

void SetFloat(GgufHeader& header, std::string_view name, std::string_view key, float value) {
  header.SetFloat32(StrCat(name, ".", key), value);
}

void AddGraniteFactors(std::string_view name, const Shape& shape, GgufHeader& header) {
  SetFloat(header, name, "embedding_scale", 0.7f);
  SetFloat(header, name, "residual_scale", 0.5f);
  SetFloat(header, name, "logit_scale", 1.25f);
  SetFloat(header, name, "attention.scale", 1.2f / std::sqrt(static_cast<float>(shape.head_dim)));
}

}  // namespace

void AddBlockMetadata(const BlockForm& form, const Shape& given, GgufHeader& header) {
  const Shape shape = Fitted(form, given);
  AddDecoderMetadata(
      form.name, shape, header,
      {.rope_dims = form.rotates_half ? shape.head_dim / 2 : 0, .layer_norms = form.layer_norms});
  if (shape.experts > 0) SetExpertKeys(form, shape, header);
  if (form.add_more != nullptr) form.add_more(shape, header);
}

std::vector<TensorSpec> BlockTensors(const BlockForm& form, const Shape& given) {
  const Shape shape = Fitted(form, given);
  TensorList list(shape);
  list.Embedding();
  if (form.add_more == AddPhi3 && shape.rope_original_context < shape.context) {
    // Factors as in published files: 1 for fast pairs, and more for slow ones.
    for (const float most : {8.0f, 1.5f}) {
      std::vector<float> factors;
      for (int i = 0; i < shape.head_dim / 2; ++i) {
        factors.push_back(1.0f + most * static_cast<float>(i) / static_cast<float>(shape.head_dim));
      }
      list.Add({.name = most > 2.0f ? "rope_factors_long.weight" : "rope_factors_short.weight",
                .dims = {shape.head_dim / 2},
                .values = factors});
    }
  }
  for (int layer = 0; layer < shape.layers + shape.family.nextn_layers; ++layer) {
    AddLayer(form, shape, layer, list);
  }
  list.Output();
  return list.Take();
}

// Raw parameters, from which softplus makes the published ones.
void AddApertus(const Shape& shape, GgufHeader& header) {
  const auto of_layers = [&](float first, float step) {
    std::vector<float> values;
    for (int i = 0; i < shape.layers; ++i) values.push_back(first + step * static_cast<float>(i));
    return values;
  };
  header.SetFloats("xielu.alpha_p", of_layers(0.3f, 0.1f));
  header.SetFloats("xielu.alpha_n", of_layers(0.2f, -0.1f));
  header.SetFloats("xielu.beta", of_layers(0.5f, 0.0f));
  header.SetFloats("xielu.eps", of_layers(-1e-6f, 0.0f));
}

void AddBailing(const Shape& shape, GgufHeader& header) {
  if (shape.family.expert_groups == 0) return;
  header.SetUint32("bailingmoe2.expert_group_count",
                   static_cast<std::uint32_t>(shape.family.expert_groups));
  header.SetUint32("bailingmoe2.expert_group_used_count",
                   static_cast<std::uint32_t>(std::max(1, shape.family.expert_groups_used)));
}

void AddCohere2(const Shape& shape, GgufHeader& header) {
  constexpr int kWindow = 128;
  Shape with_window = shape;
  if (shape.window == 0) with_window.window = kWindow;
  AddWindows("cohere2", with_window, header);
  SetFloat(header, "cohere2", "logit_scale", 0.9f);
}

void AddErnieMoe(const Shape& shape, GgufHeader& header) {
  header.SetUint32("ernie4_5-moe.expert_shared_feed_forward_length",
                   static_cast<std::uint32_t>(shape.expert_ffn));
  header.SetUint32("ernie4_5-moe.expert_shared_count", 1);
  header.SetUint32("ernie4_5-moe.leading_dense_block_count",
                   static_cast<std::uint32_t>(shape.family.dense_layers));
  header.SetUint32("ernie4_5-moe.interleave_moe_layer_step", 1);
}

void AddExaone4(const Shape& shape, GgufHeader& header) {
  AddWindows("exaone4", shape, header);
}

void AddGranite(const Shape& shape, GgufHeader& header) {
  AddGraniteFactors("granite", shape, header);
}

void AddGraniteMoe(const Shape& shape, GgufHeader& header) {
  AddGraniteFactors("granitemoe", shape, header);
  header.SetUint32("granitemoe.expert_shared_feed_forward_length",
                   static_cast<std::uint32_t>(shape.expert_ffn));
}

void AddHunyuan(const Shape&, GgufHeader& header) {
  SetFloat(header, "hunyuan-dense", "rope.scaling.alpha", 3.0f);
}

void AddHunyuanMoe(const Shape& shape, GgufHeader& header) {
  header.SetUint32("hunyuan-moe.expert_shared_feed_forward_length",
                   static_cast<std::uint32_t>(shape.expert_ffn));
}

void AddMiniMax(const Shape&, GgufHeader& header) {
  constexpr std::uint32_t kSigmoid = 2;
  header.SetUint32("minimax-m2.expert_gating_func", kSigmoid);
}

void AddOlmo2(const Shape& shape, GgufHeader& header) {
  AddWindows("olmo2", shape, header);
}

void AddPhi3(const Shape& shape, GgufHeader& header) {
  AddWindows("phi3", shape, header);
  header.SetUint32("phi3.rope.scaling.original_context_length",
                   static_cast<std::uint32_t>(shape.rope_original_context));
  SetFloat(header, "phi3", "rope.scaling.attn_factor", 1.19f);
}

}  // namespace kvcache::make_model
