// The qwen3 and qwen3moe architectures: each head's query and key is normed before it turns; no
// biases; heads of a size of their own. In qwen3moe every layer's feed-forward part is a mixture of
// experts.
//
// Source: Yang et al., "Qwen3 technical report" (2025).
#include <utility>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/blocks.h"
#include "model/graph/decoder.h"
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
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;  // [hidden_size]
    Norm q_norm, k_norm;       // [head]
    AttentionWeights attention;
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
  const auto norm = [&](const char* name, std::int64_t size) {
    return reader.RmsNorm(prefix + name, size, p.norm_epsilon);
  };
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm, norm("attn_norm", p.hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention, AttentionWeights::Load(reader, p, index));
  KVCACHE_ASSIGN_OR_RETURN(layer.q_norm, norm("attn_q_norm", p.k_dim));
  KVCACHE_ASSIGN_OR_RETURN(layer.k_norm, norm("attn_k_norm", p.k_dim));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, norm("ffn_norm", p.hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, FeedForward::Load(reader, p, experts_, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Qwen3::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  {
    const AttentionWeights& w = layer.attention;
    const Pass::Scope attention(pass);
    const auto [q, k, v, att] = TakeAttention(pass, w);
    pass.RmsNorm(x, layer.attn_norm, h);
    pass.Linear(h, {{w.q, q}, {w.k, k}, {w.v, v}});
    pass.RmsNorm(q, layer.q_norm, q);
    pass.RmsNorm(k, layer.k_norm, k);
    pass.Rope(q, rope_.params());
    pass.Rope(k, rope_.params());
    pass.Attention(index, q, k, v, {.scale = params().attention_scale}, att);
    pass.Linear(att, {{w.o, h}});
    pass.Add(x, h);
  }
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
