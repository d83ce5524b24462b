// nemotron_h, nemotron_h_moe and mamba2: layers of one block. Layers of the first two are in turn a Mamba-2
// mixer, attention, and a feed-forward part without a gate.
#include <cmath>

#include "base/strings.h"
#include "make_model/families.h"
#include "make_model/hybrid.h"

namespace kvcache::make_model {
namespace {

// The mean square of relu(x)² for normal x is 1.5.
constexpr float kSquaredGain = 0.8f;

enum class Block : std::uint8_t { kMixer, kAttention, kFeedForward };

Block BlockOf(int layer) {
  return static_cast<Block>(layer % 3);
}

void AddPlain(const Shape& shape, const std::string& block, const std::string& suffix, int ffn,
              TensorList& list) {
  list.Matrix(block + "ffn_up" + suffix + ".weight", shape.hidden_size, ffn,
              PerRoot(1.0f, shape.hidden_size));
  list.Matrix(block + "ffn_down" + suffix + ".weight", ffn, shape.hidden_size,
              PerRoot(list.embedding() * kSquaredGain, ffn));
}

void AddExperts(const Shape& shape, const std::string& block, TensorList& list) {
  const int latent = shape.family.latent;
  const int width = latent > 0 ? latent : shape.hidden_size;
  list.Add({.name = block + "ffn_gate_inp.weight",
            .dims = {shape.hidden_size, shape.experts},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(kRouterDeviation, shape.hidden_size),
            .keep_f32 = true});
  list.Vector(block + "exp_probs_b.bias", shape.experts, Distribution::kNormal, 0.1f);
  if (latent > 0) {
    list.Matrix(block + "ffn_latent_down.weight", shape.hidden_size, latent,
                PerRoot(1.0f, shape.hidden_size));
    list.Matrix(block + "ffn_latent_up.weight", latent, shape.hidden_size, PerRoot(1.0f, latent));
  }
  list.Add({.name = block + "ffn_up_exps.weight",
            .dims = {width, shape.expert_ffn, shape.experts},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(1.0f, width)});
  list.Add({.name = block + "ffn_down_exps.weight",
            .dims = {shape.expert_ffn, width, shape.experts},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(list.embedding() * kEqualExpertGain, shape.expert_ffn)});
  AddPlain(shape, block, "_shexp", shape.ffn, list);
}

void AddMetadata(std::string_view name, const Shape& shape, GgufHeader& header) {
  DecoderKeys keys;
  for (int layer = 0; layer < shape.layers; ++layer) {
    keys.kv_heads.push_back(BlockOf(layer) == Block::kAttention ? shape.kv_heads : 0);
    keys.ffn.push_back(BlockOf(layer) == Block::kFeedForward ? shape.ffn : 0);
  }
  AddDecoderMetadata(name, shape, header, keys);
  AddStateMetadata(name, Mamba2Sizes(shape), header);
  // Published files have this key for a draft head, which these do not have.
  header.SetFloat32(StrCat(name, ".attention.layer_norm_epsilon"), 1e-5f);
}

}  // namespace

void AddNemotronH(const Shape& shape, GgufHeader& header) {
  AddMetadata("nemotron_h", shape, header);
}

void AddNemotronHMoe(const Shape& shape, GgufHeader& header) {
  AddMetadata("nemotron_h_moe", shape, header);
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("nemotron_h_moe.", key), static_cast<std::uint32_t>(value));
  };
  set("expert_shared_feed_forward_length", shape.ffn);
  if (shape.expert_ffn == shape.ffn) set("expert_feed_forward_length", shape.expert_ffn);
  if (shape.family.latent > 0) set("moe_latent_size", shape.family.latent);
  header.SetBool("nemotron_h_moe.expert_weights_norm", true);
  header.SetFloat32("nemotron_h_moe.expert_weights_scale", 2.5f);
}

std::vector<TensorSpec> NemotronHTensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (BlockOf(layer) == Block::kAttention) {
      list.Attention(block, AttentionExtras::kNone);
      continue;
    }
    list.Norm(block + "attn_norm.weight");
    if (BlockOf(layer) == Block::kMixer) {
      AddMamba2(shape, block, list);
    } else if (shape.experts > 0) {
      AddExperts(shape, block, list);
    } else {
      AddPlain(shape, block, "", shape.ffn, list);
    }
  }
  list.Output();
  return list.Take();
}

void AddMamba2(const Shape& shape, GgufHeader& header) {
  Shape pure = shape;
  pure.heads = 0;
  pure.ffn = 0;
  AddSizeMetadata("mamba2", pure, header);
  AddStateMetadata("mamba2", Mamba2Sizes(shape), header);
}

std::vector<TensorSpec> Mamba2Tensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    list.Norm(block + "attn_norm.weight");
    AddMamba2(shape, block, list);
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
