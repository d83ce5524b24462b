// The mistral3 architecture: Mistral Small 3 and Ministral 3. llama's layers, where far queries may
// be made sharper: with attention.temperature_scale b, the query at position p is multiplied by
//
//   1 + b · ln(1 + floor(p / original context))
//
// Source: Mistral's published inference code (llama_4_scaling); keys as llama.cpp reads them.
#include <algorithm>
#include <cmath>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/blocks.h"
#include "model/graph/decoder.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

class Mistral3 final : public Decoder {
 public:
  Mistral3(Backend& backend, std::string_view name, LayerParams params, RopeTable rope,
           double temperature_scale)
      : Decoder(backend, name, std::move(params)),
        rope_(std::move(rope)),
        temperature_scale_(temperature_scale) {}

  Status Reserve(int max_batch) override;

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;
    AttentionWeights attention;
    GatedFeedForward ffn;
  };

  std::span<const float> Temperatures(std::span<const Position> positions);

  RopeTable rope_;
  double temperature_scale_;
  std::vector<float> factors_;  // [max_batch]
  std::vector<Layer> layers_;
};

Status Mistral3::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention, AttentionWeights::Load(reader, p, index));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn,
                           GatedFeedForward::Load(reader, prefix, p.hidden_size,
                                                  p.ffn[static_cast<std::size_t>(index)]));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

Status Mistral3::Reserve(int max_batch) {
  try {
    factors_.resize(std::max(factors_.size(), static_cast<std::size_t>(max_batch)));
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for a batch of " + std::to_string(max_batch)};
  }
  return Decoder::Reserve(max_batch);
}

std::span<const float> Mistral3::Temperatures(std::span<const Position> positions) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const double passed = std::floor(1.0 * positions[i] / rope_.original_context);
    factors_[i] = static_cast<float>(1.0 + temperature_scale_ * std::log1p(passed));
  }
  return std::span(factors_).first(positions.size());
}

void Mistral3::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  {
    const AttentionWeights& w = layer.attention;
    const Pass::Scope attention(pass);
    const auto [q, k, v, att] = TakeAttention(pass, w);
    pass.RmsNorm(x, layer.attn_norm, h);
    pass.Linear(h, {{w.q, q}, {w.k, k}, {w.v, v}});
    pass.Rope(q, rope_.params());
    pass.Rope(k, rope_.params());
    if (temperature_scale_ != 0.0) pass.ScaleTokens(q, Temperatures(pass.positions()));
    pass.Attention(index, q, k, v, {.scale = params().attention_scale}, att);
    pass.Linear(att, {{w.o, h}});
    pass.Add(x, h);
  }
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
