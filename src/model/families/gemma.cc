// The gemma2 and gemma3 architectures. Embeddings are scaled by √hidden_size and gates are GELU's.
// Attention and the feed-forward part have a norm before and a norm after them. Layers with a
// window alternate with layers that see all tokens.
//
// gemma2 soft-caps scores and logits: cap · tanh(x / cap). gemma3 norms each head's query and key
// instead, and its window layers have RoPE frequencies of their own, without scaling.
//
// A norm's weight in a file is the published weight plus 1: converters add the 1.
//
// Source: "Gemma 2" (2024) and "Gemma 3 technical report" (2025). The scale of the largest models'
// queries is that of the published configurations (query_pre_attn_scalar); files do not carry it.
#include <cmath>
#include <optional>
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

// The settings in which gemma2 and gemma3 differ.
struct GemmaParams {
  std::vector<AttentionSpan> spans;
  RopeTable rope;                        // of layers without a window
  std::optional<RopeTable> window_rope;  // of layers with a window, if they have their own
  float soft_cap = 0.0f;                 // cap of the scores; 0: none
  bool head_norms = false;
};

class Gemma final : public Decoder {
 public:
  Gemma(Backend& backend, std::string_view name, LayerParams params, GemmaParams gemma)
      : Decoder(backend, name, std::move(params)), gemma_(std::move(gemma)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  AttentionSpan attention_span(int layer) const override {
    return gemma_.spans[static_cast<std::size_t>(layer)];
  }
  RopeParams rope(int layer) const override {
    const bool in_window = gemma_.window_rope.has_value() && attention_span(layer).window > 0;
    return (in_window ? *gemma_.window_rope : gemma_.rope).params();
  }

 private:
  struct Layer {
    Norm attn_norm, attn_post_norm, ffn_norm, ffn_post_norm;  // [hidden_size]
    SelfAttention attention;
    GatedFeedForward ffn;
  };

  GemmaParams gemma_;
  std::vector<Layer> layers_;
};

Status Gemma::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  const auto norm = [&](const char* name) {
    return reader.RmsNorm(prefix + name, p.hidden_size, p.norm_epsilon);
  };
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm, norm("attn_norm"));
  KVCACHE_ASSIGN_OR_RETURN(
      layer.attention, SelfAttention::Load(reader, p, index, {.head_norms = gemma_.head_norms}));
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_post_norm, norm("post_attention_norm"));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, norm("ffn_norm"));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, GatedFeedForward::Load(reader, p, index));
  layer.ffn.activation = Activation::kGelu;
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_post_norm, norm("post_ffw_norm"));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Gemma::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.attn_norm, h);
  layer.attention.Run(
      pass, index, h,
      {.rope = rope(index),
       .attention = {.scale = params().attention_scale, .soft_cap = gemma_.soft_cap}},
      h);
  pass.RmsNorm(h, layer.attn_post_norm, h);
  pass.Add(x, h);

  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, h, h);
  pass.RmsNorm(h, layer.ffn_post_norm, h);
  pass.Add(x, h);
}

// The 27B models scale queries by hidden size / heads instead of by the head's size. The number of
// layers identifies them.
void ScaleQueries(const KeyReader& keys, int layers_of_27b, LayerParams* params) {
  if (params->layers != layers_of_27b || keys.Has("attention.scale")) return;
  const double size_per_head = 1.0 * params->hidden_size / params->heads[0];
  params->attention_scale = static_cast<float>(1.0 / std::sqrt(size_per_head));
}

Status ReadGemma2(KeyReader& keys, LayerParams* params, GemmaParams* gemma) {
  ScaleQueries(keys, 46, params);
  KVCACHE_ASSIGN_OR_RETURN(gemma->soft_cap, ReadSoftCap(keys, "attn_logit_softcapping", 50.0));
  KVCACHE_ASSIGN_OR_RETURN(params->logit_soft_cap,
                           ReadSoftCap(keys, "final_logit_softcapping", 30.0));
  return Status::Ok();
}

Status ReadGemma3(KeyReader& keys, LayerParams* params, GemmaParams* gemma) {
  ScaleQueries(keys, 62, params);
  gemma->head_norms = true;
  KVCACHE_ASSIGN_OR_RETURN(params->logit_soft_cap,
                           ReadSoftCap(keys, "final_logit_softcapping", 0.0));
  KVCACHE_ASSIGN_OR_RETURN(gemma->window_rope,
                           ReadWindowRope(keys, params->k_dim, RopeParams::Pairing::kHalves));
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Model>> LoadGemma(const GgufFile& file, std::string_view name,
                                         Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  params.embedding_scale = std::sqrt(static_cast<float>(params.hidden_size));
  GemmaParams gemma;
  KVCACHE_ASSIGN_OR_RETURN(gemma.spans, ReadAttentionSpans(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(gemma.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, weights));
  const auto read = name == "gemma2" ? ReadGemma2 : ReadGemma3;
  KVCACHE_RETURN_IF_ERROR(read(keys, &params, &gemma));
  IgnoreVisionAndAudio(keys, weights);
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(std::make_unique<Gemma>(backend, name, std::move(params), std::move(gemma)),
                     weights, file);
}

}  // namespace kvcache
