// The qwen3 and qwen3moe architectures. Each head's query and key is normed before RoPE; there are
// no biases; the head size does not depend on the hidden size. In qwen3moe every layer's
// feed-forward part is a mixture of experts.
//
// Source: Yang et al., "Qwen3 technical report" (2025).
#include <utility>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

class Qwen3 final : public Decoder {
 public:
  Qwen3(Backend& backend, std::string_view name, LayerParams params, ExpertParams experts,
        RopeTable rope)
      : Decoder(backend, name, std::move(params)), experts_(experts), rope_(std::move(rope)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  bool can_have_head() const override { return true; }
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;  // [hidden_size]
    SelfAttention attention;
    FeedForward ffn;
  };

  ExpertParams experts_;
  RopeTable rope_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Status Qwen3::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  const auto norm = [&](const char* name) {
    return reader.RmsNorm(prefix + name, p.hidden_size, p.norm_epsilon);
  };
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm, norm("attn_norm"));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention,
                           SelfAttention::Load(reader, p, index, {.head_norms = true}));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, norm("ffn_norm"));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, FeedForward::Load(reader, p, experts_, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Qwen3::RunLayer(Pass& pass, int index, const TensorView& x) {
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

Result<std::unique_ptr<Model>> LoadQwen3(const GgufFile& file, std::string_view name,
                                         Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  ExpertParams experts;
  if (name == "qwen3moe") {
    KVCACHE_ASSIGN_OR_RETURN(experts, ReadExpertParams(keys, params));
  }
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, weights));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(
      std::make_unique<Qwen3>(backend, name, std::move(params), experts, std::move(rope)), weights,
      file);
}

}  // namespace kvcache
