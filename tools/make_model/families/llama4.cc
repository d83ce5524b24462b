// llama4: every second layer has experts, one of them shared by all tokens. The file does not say
// which layers have chunks and which have rotation: the architecture fixes that.
#include "make_model/families.h"

#include "base/strings.h"
#include "make_model/tensor_list.h"

namespace kvcache::make_model {
namespace {

int ExpertStep(const Shape& shape) {
  return shape.family.expert_step > 0 ? shape.family.expert_step : 2;
}

}  // namespace

void AddLlama4(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("llama4", shape, header);
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("llama4.", key), static_cast<std::uint32_t>(value));
  };
  set("interleave_moe_layer_step", ExpertStep(shape));
  if (shape.expert_ffn == shape.ffn) set("expert_feed_forward_length", shape.expert_ffn);
  if (shape.family.chunk > 0) set("attention.chunk_size", shape.family.chunk);
  if (shape.family.temperature_length > 0) {
    set("attention.temperature_length", shape.family.temperature_length);
  }
}

std::vector<TensorSpec> Llama4Tensors(const Shape& shape) {
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    list.Attention(block, AttentionExtras::kNone);
    list.Norm(block + "ffn_norm.weight");
    if ((layer + 1) % ExpertStep(shape) == 0) {
      list.Experts(block, kEqualExpertGain);
      list.FeedForward(block, shape.expert_ffn, "_shexp");
    } else {
      list.FeedForward(block, shape.ffn);
    }
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
