// The gpt-oss architecture. Every feed-forward part is a mixture of experts with biases and a
// clamped gate. Attention has biases on all four matrices, a window in every other layer, and a
// sink: a learned logit in each head's softmax that belongs to no key.
//
//   gate = min(Wgate h + b, 7),  up = Wup h + b within ±7
//   out  = Wdown (gate · sigmoid(1.702 gate) × (up + 1)) + b
//
// A token's experts are weighted by the softmax over their logits. Positions are scaled by YaRN.
// Its ramp runs between whole pairs, as in all families here and in llama.cpp; the published code
// does not round the ramp's ends.
//
// Source: OpenAI, "gpt-oss-120b & gpt-oss-20b model card" (2025), and the code published with it.
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

constexpr float kGateLimit = 7.0f;
constexpr float kGateAlpha = 1.702f;

class GptOss final : public Decoder {
 public:
  GptOss(Backend& backend, std::string_view name, LayerParams params, ExpertParams experts,
         RopeTable rope, std::vector<AttentionSpan> spans)
      : Decoder(backend, name, std::move(params)),
        experts_(experts),
        rope_(std::move(rope)),
        spans_(std::move(spans)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }
  AttentionSpan attention_span(int layer) const override {
    return spans_[static_cast<std::size_t>(layer)];
  }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;
    SelfAttention attention;
    Experts ffn;
  };

  ExpertParams experts_;
  RopeTable rope_;
  std::vector<AttentionSpan> spans_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Status GptOss::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention, SelfAttention::Load(reader, p, index,
                                                                {.bias = Bias::kRequired,
                                                                 .output_bias = Bias::kRequired,
                                                                 .sinks = true}));
  // The norm after attention is the feed-forward part's norm.
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, reader.RmsNorm(prefix + "post_attention_norm",
                                                          p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, Experts::Load(reader, prefix, p.hidden_size, experts_));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void GptOss::RunLayer(Pass& pass, int index, const TensorView& x) {
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

Result<std::unique_ptr<Model>> LoadGptOss(const GgufFile& file, std::string_view name,
                                          Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(std::vector<AttentionSpan> spans, ReadAttentionSpans(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params));
  if (experts.count == 0) {
    return Corrupt(StrCat(keys.Key("expert_count"), " is missing; gpt-oss needs experts"));
  }
  experts.biases = true;
  experts.gate_limit = kGateLimit;
  experts.gate_alpha = kGateAlpha;
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, weights));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(std::make_unique<GptOss>(backend, name, std::move(params), experts,
                                              std::move(rope), std::move(spans)),
                     weights, file);
}

}  // namespace kvcache
