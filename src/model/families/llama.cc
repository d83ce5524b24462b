// The llama architecture: pre-norm decoder with RoPE, grouped-query attention and SwiGLU, or a
// mixture of SwiGLU experts. Llama 1 to 3, Mistral, Mixtral, TinyLlama and SmolLM files carry this
// name in general.architecture.
//
// Attention has biases if the file has them. A window (attention.sliding_window, Mistral 0.1)
// applies to all layers.
//
// Source: Touvron et al., "LLaMA" (2023); Jiang et al., "Mistral 7B" (2023) and "Mixtral of
// experts" (2024); tensor and key names as in the GGUF specification.
#include <utility>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

class Llama final : public Decoder {
 public:
  Llama(Backend& backend, std::string_view name, LayerParams params, ExpertParams experts,
        RopeTable rope, std::vector<AttentionSpan> spans)
      : Decoder(backend, name, std::move(params)),
        experts_(experts),
        rope_(std::move(rope)),
        spans_(std::move(spans)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  bool can_have_head() const override { return true; }
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }
  AttentionSpan attention_span(int layer) const override {
    return spans_[static_cast<std::size_t>(layer)];
  }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;
    SelfAttention attention;
    FeedForward ffn;
  };

  ExpertParams experts_;
  RopeTable rope_;
  std::vector<AttentionSpan> spans_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Status Llama::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(
      layer.attn_norm,
      reader.RmsNorm(prefix + "attn_norm", params().hidden_size, params().norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention, SelfAttention::Load(reader, params(), index,
                                                                {.bias = Bias::kIfPresent,
                                                                 .output_bias = Bias::kIfPresent}));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, reader.RmsNorm(prefix + "ffn_norm", params().hidden_size,
                                                          params().norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, FeedForward::Load(reader, params(), experts_, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Llama::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.attn_norm, h);
  layer.attention.Run(pass, index, h,
                      {.rope = rope_.params(), .attention = {.scale = params().attention_scale}},
                      h);
  pass.Add(x, h);

  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, plan_, h, h);
  pass.Add(x, h);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadLlama(const GgufFile& file, std::string_view name,
                                         Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(const ExpertParams experts, ReadExpertParams(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kInterleaved, weights));
  KVCACHE_ASSIGN_OR_RETURN(std::vector<AttentionSpan> spans, ReadAttentionSpans(keys, params));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(std::make_unique<Llama>(backend, name, std::move(params), experts,
                                             std::move(rope), std::move(spans)),
                     weights, file);
}

}  // namespace kvcache
