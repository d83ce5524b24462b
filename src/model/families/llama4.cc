// The llama4 architecture, text part. Feed-forward parts are mixtures of experts with one shared
// expert. Of each four layers, three rotate queries and keys, norm them afterwards (each head,
// without a weight), and see the positions of their chunk. The fourth has no rotation and sees all
// positions; its query at position p is multiplied by
//
//   1 + b · ln(1 + floor((p + 1) / n))        b = 0.1, n = 8,192 unless the file says otherwise
//
// An expert's weight, the sigmoid of its logit, multiplies the expert's input. A file with
// attention.sliding_window = 0 has layers of the first kind alone, which then see all positions.
//
// Source: Meta's published inference code (llama_models/llama4) and Hugging Face's modeling_llama4;
// keys as llama.cpp and Ollama write them.
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/graph/attention/query_factors.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/graph/shared_experts.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

// The settings that only llama4 has.
struct Llama4Params {
  int chunk = 8192;          // tokens; 0: all layers see everything and rotate
  int expert_step = 1;       // n: every n-th layer's feed-forward part has experts
  bool head_norms = true;    // norm heads in layers that rotate
  double temperature = 0.1;  // b above
  int temperature_length = 8192;
};

class Llama4 final : public Decoder {
 public:
  Llama4(Backend& backend, std::string_view name, LayerParams params, const ExpertParams& experts,
         const Llama4Params& config, RopeTable rope)
      : Decoder(backend, name, std::move(params)),
        experts_(experts),
        config_(config),
        rope_(std::move(rope)),
        ones_(static_cast<std::size_t>(this->params().k_dim), 1.0f),
        query_factors_(config.temperature, config.temperature_length, 1) {}

  Status Reserve(int max_batch) override;

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int layer) const override {
    return Rotates(layer) ? rope_.params() : RopeParams{};
  }
  AttentionSpan attention_span(int layer) const override {
    return {.chunk = Rotates(layer) ? config_.chunk : 0};
  }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;
    AttentionWeights attention;
    SharedExperts ffn;
  };

  bool Rotates(int layer) const { return config_.chunk == 0 || (layer + 1) % 4 != 0; }
  // Returns the norm of a head without a weight.
  Norm HeadNorm();
  void Attend(Pass& pass, int index, const TensorView& x, const TensorView& h);

  ExpertParams experts_;
  Llama4Params config_;
  RopeTable rope_;
  std::vector<float> ones_;  // [k_dim]
  QueryFactors query_factors_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Status Llama4::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention, AttentionWeights::Load(reader, p, index));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.hidden_size, p.norm_epsilon));
  if ((index + 1) % config_.expert_step == 0) {
    KVCACHE_ASSIGN_OR_RETURN(layer.ffn,
                             SharedExperts::Routed(reader, p, experts_, experts_.ffn, index));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(layer.ffn, SharedExperts::Dense(reader, p, index));
  }
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

Status Llama4::Reserve(int max_batch) {
  KVCACHE_RETURN_IF_ERROR(query_factors_.Reserve(max_batch));
  return Decoder::Reserve(max_batch);
}

Norm Llama4::HeadNorm() {
  return {TensorView::Dense(ones_.data(), DType::kF32, params().k_dim), params().norm_epsilon};
}

void Llama4::Attend(Pass& pass, int index, const TensorView& x, const TensorView& h) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const AttentionWeights& w = layer.attention;
  const Pass::Scope attention(pass);
  const auto [q, k, v, att] = TakeAttention(pass, w);
  pass.RmsNorm(x, layer.attn_norm, h);
  pass.Linear(h, {{w.q, q}, {w.k, k}, {w.v, v}});
  if (Rotates(index)) {
    pass.Rope(q, rope_.params());
    pass.Rope(k, rope_.params());
    if (config_.head_norms) {
      pass.RmsNorm(q, HeadNorm(), q);
      pass.RmsNorm(k, HeadNorm(), k);
    }
  } else if (pass.runs()) {  // a measuring pass has no positions
    pass.ScaleTokens(q, query_factors_.At(pass.positions()));
  }
  pass.Attention(index, q, k, v, {.scale = params().attention_scale}, att);
  pass.Linear(att, {{w.o, h}});
  pass.Add(x, h);
}

void Llama4::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  Attend(pass, index, x, h);
  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, plan_, h, h);
  pass.Add(x, h);
}

// Files without use_qk_norm: as in llama.cpp, the number of experts tells which published model
// norms heads.
constexpr int kExpertsWithoutHeadNorms = 128;

Result<Llama4Params> ReadConfig(KeyReader& keys, const ExpertParams& experts) {
  constexpr std::string_view kWindow = "attention.sliding_window";
  Llama4Params config;
  KVCACHE_ASSIGN_OR_RETURN(config.chunk, keys.IntOr("attention.chunk_size", 1 << 28, config.chunk));
  if (keys.Has(kWindow)) {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t window, keys.file().GetInt(keys.Key(kWindow)));
    if (window != 0) return keys.Unsupported(kWindow);
    config.chunk = 0;
  }
  KVCACHE_ASSIGN_OR_RETURN(config.expert_step, keys.IntOr("interleave_moe_layer_step", 1 << 16, 1));
  KVCACHE_ASSIGN_OR_RETURN(config.head_norms,
                           keys.BoolOr("use_qk_norm", experts.count != kExpertsWithoutHeadNorms));
  KVCACHE_ASSIGN_OR_RETURN(config.temperature,
                           keys.FloatOr("attention.temperature_scale", config.temperature));
  KVCACHE_ASSIGN_OR_RETURN(
      config.temperature_length,
      keys.IntOr("attention.temperature_length", 1 << 28, config.temperature_length));
  return config;
}

}  // namespace

Result<std::unique_ptr<Model>> LoadLlama4(const GgufFile& file, std::string_view name,
                                          Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts,
                           ReadExpertParams(keys, params, {.sigmoid = true, .renormalize = false}));
  if (experts.count == 0)
    return Unsupported(StrCat(keys.Key("expert_count"), " is 0 or missing; llama4 needs experts"));
  if (experts.renormalize) return keys.Unsupported("expert_weights_norm");
  experts.gate = RouterOptions::Gate::kSigmoid;
  experts.weigh_input = true;
  KVCACHE_ASSIGN_OR_RETURN(const Llama4Params config, ReadConfig(keys, experts));
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kInterleaved, weights));
  IgnoreVisionAndAudio(keys, weights);
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(
      std::make_unique<Llama4>(backend, name, std::move(params), experts, config, std::move(rope)),
      weights, file);
}

}  // namespace kvcache
