// The qwen2 architecture (Qwen 1.5, 2 and 2.5): llama's layers with biases on q, k and v. RoPE
// rotates pairs from the two halves of a head instead of neighbouring values.
//
// A window in a file (attention.sliding_window) has no effect: the published models state one, but
// switch it off with use_sliding_window.
//
// Source: Yang et al., "Qwen2 technical report" (2024).
#include <utility>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

class Qwen2 final : public Decoder {
 public:
  Qwen2(Backend& backend, std::string_view name, LayerParams params, RopeTable rope)
      : Decoder(backend, name, std::move(params)), rope_(std::move(rope)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  bool can_have_head() const override { return true; }
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;
    SelfAttention attention;
    GatedFeedForward ffn;
  };

  RopeTable rope_;
  std::vector<Layer> layers_;
};

Status Qwen2::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention,
                           SelfAttention::Load(reader, p, index, {.bias = Bias::kRequired}));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, GatedFeedForward::Load(reader, p, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Qwen2::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.attn_norm, h);
  layer.attention.Run(pass, index, h,
                      {.rope = rope_.params(), .attention = {.scale = params().attention_scale}},
                      h);
  pass.Add(x, h);

  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, h, h);
  pass.Add(x, h);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadQwen2(const GgufFile& file, std::string_view name,
                                         Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, weights));
  keys.Ignore("attention.sliding_window");
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(std::make_unique<Qwen2>(backend, name, std::move(params), std::move(rope)),
                     weights, file);
}

}  // namespace kvcache
