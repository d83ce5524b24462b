// The mistral3 architecture: Mistral Small 3 and Ministral 3. llama's layers; with
// attention.temperature_scale b, the query at position p is multiplied by a factor that sharpens
// attention at far positions (query_factors.h):
//
//   1 + b · ln(1 + floor(p / original context))
//
// Source: Mistral's published inference code (llama_4_scaling); keys as llama.cpp reads them.
#include <utility>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/attention/query_factors.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

class Mistral3 final : public Decoder {
 public:
  Mistral3(Backend& backend, std::string_view name, LayerParams params, RopeTable rope,
           double temperature_scale)
      : Decoder(backend, name, std::move(params)),
        rope_(std::move(rope)),
        scales_queries_(temperature_scale != 0.0),
        query_factors_(temperature_scale, rope_.original_context, 0) {}

  Status Reserve(int max_batch) override;

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;
    SelfAttention attention;
    GatedFeedForward ffn;
  };

  RopeTable rope_;
  bool scales_queries_;
  QueryFactors query_factors_;
  std::vector<Layer> layers_;
};

Status Mistral3::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention, SelfAttention::Load(reader, p, index));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, GatedFeedForward::Load(reader, p, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

Status Mistral3::Reserve(int max_batch) {
  KVCACHE_RETURN_IF_ERROR(query_factors_.Reserve(max_batch));
  return Decoder::Reserve(max_batch);
}

void Mistral3::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  SelfAttentionOptions options{.rope = rope_.params(),
                               .attention = {.scale = params().attention_scale}};
  if (scales_queries_) options.query_factors = query_factors_.At(pass.positions());
  pass.RmsNorm(x, layer.attn_norm, h);
  layer.attention.Run(pass, index, h, options, h);
  pass.Add(x, h);

  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, h, h);
  pass.Add(x, h);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadMistral3(const GgufFile& file, std::string_view name,
                                            Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kInterleaved, weights));
  KVCACHE_ASSIGN_OR_RETURN(const double scale, keys.FloatOr("attention.temperature_scale", 0.0));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(
      std::make_unique<Mistral3>(backend, name, std::move(params), std::move(rope), scale), weights,
      file);
}

}  // namespace kvcache
