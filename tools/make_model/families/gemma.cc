// gemma2 and gemma3: norms after attention and after the feed-forward part, windows in some layers,
// always tied.
//
// Embeddings are scaled by √hidden_size, so they have deviation 2.5 in the residual stream. The
// norm after a part, whose weights are about 0.7 of that, sets the size of its result.
#include "base/strings.h"
#include "make_model/families.h"

namespace kvcache::make_model {
namespace {

constexpr float kAdded = 0.7f * kLogitDeviation;

void AddGemma(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata(architecture, shape, header);
  AddWindows(architecture, shape, header);
}

std::vector<TensorSpec> GemmaTensors(Shape shape, AttentionExtras extras) {
  shape.output = Output::kTied;
  TensorList list(shape);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    list.Attention(block, extras);
    list.Vector(block + "post_attention_norm.weight", shape.hidden_size, Distribution::kNorm,
                kAdded);
    list.Norm(block + "ffn_norm.weight");
    list.FeedForward(block, shape.ffn);
    list.Vector(block + "post_ffw_norm.weight", shape.hidden_size, Distribution::kNorm, kAdded);
  }
  list.Output();
  return list.Take();
}

}  // namespace

// Caps low enough to matter: scores have deviation 1.5, logits 2.5.
void AddGemma2(const Shape& shape, GgufHeader& header) {
  AddGemma("gemma2", shape, header);
  header.SetFloat32("gemma2.attn_logit_softcapping", 10.0f);
  header.SetFloat32("gemma2.final_logit_softcapping", 20.0f);
}
std::vector<TensorSpec> Gemma2Tensors(const Shape& shape) {
  return GemmaTensors(shape, AttentionExtras::kNone);
}

void AddGemma3(const Shape& shape, GgufHeader& header) {
  AddGemma("gemma3", shape, header);
}
std::vector<TensorSpec> Gemma3Tensors(const Shape& shape) {
  return GemmaTensors(shape, AttentionExtras::kHeadNorms);
}

}  // namespace kvcache::make_model
