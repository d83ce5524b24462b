// granitehybrid: Mamba-2 layers with an inner size of twice the hidden size, and every n-th layer
// attention, usually without rotation. The file has factors for the embedding and for the layers'
// results, and a divisor of the logits.
#include <cmath>

#include "base/strings.h"
#include "make_model/families.h"
#include "make_model/hybrid.h"

namespace kvcache::make_model {
namespace {

// The factors' product is near 1, so that layers matter as much as in other families.
constexpr float kEmbeddingScale = 0.7f;
constexpr float kResidualScale = 0.5f;
constexpr float kLogitScale = 1.25f;

}  // namespace

void AddGraniteHybrid(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("granitehybrid", shape, header, {.kv_heads = KvHeadsByLayer(shape)});
  AddStateMetadata("granitehybrid", Mamba2Sizes(shape), header);
  const auto set = [&](std::string_view key, float value) {
    header.SetFloat32(StrCat("granitehybrid.", key), value);
  };
  set("embedding_scale", kEmbeddingScale);
  set("residual_scale", kResidualScale);
  set("logit_scale", kLogitScale);
  set("attention.scale", 1.2f / std::sqrt(static_cast<float>(shape.head_dim)));
  header.SetBool("granitehybrid.rope.scaling.finetuned", shape.family.rotates);
  if (shape.experts > 0) {
    header.SetUint32("granitehybrid.expert_shared_feed_forward_length",
                     static_cast<std::uint32_t>(shape.ffn));
  }
}

std::vector<TensorSpec> GraniteHybridTensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (IsAttention(shape, layer)) {
      list.Attention(block, AttentionExtras::kNone);
    } else {
      list.Norm(block + "attn_norm.weight");
      AddMamba2(shape, block, list);
    }
    list.Norm(block + "ffn_norm.weight");
    if (shape.experts > 0) {
      list.Experts(block);
      list.FeedForward(block, shape.ffn, "_shexp");
    } else {
      list.FeedForward(block, shape.ffn);
    }
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
