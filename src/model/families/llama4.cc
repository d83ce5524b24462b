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
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

// The settings that only llama4 has.
struct Llama4Params {
  int chunk = 8192;          // tokens; 0: all layers see everything and rotate
  bool head_norms = true;    // norm heads in layers that rotate
  double temperature = 0.1;  // b above
  int temperature_length = 8192;

  bool Rotates(int layer) const { return chunk == 0 || (layer + 1) % 4 != 0; }
};

class Llama4 final : public BlockDecoder {
 public:
  Llama4(Backend& backend, std::string_view name, LayerParams params, BlockParams blocks,
         const Llama4Params& config)
      : BlockDecoder(backend, name, std::move(params), std::move(blocks)), config_(config) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override {
    KVCACHE_ASSIGN_OR_RETURN(auto ones, PlacedVector::Make(backend(), index, params().k_dim, 1.0f));
    ones_.push_back(std::move(ones));
    return BlockDecoder::LoadLayer(reader, index);
  }
  void RunMixer(Pass& pass, int index, const TensorView& h) override;
  RopeParams rope(int layer) const override {
    return config_.Rotates(layer) ? BlockDecoder::rope(layer) : RopeParams{};
  }

 private:
  // Returns the norm of a head without a weight.
  Norm HeadNorm(int index) const {
    return {ones_[static_cast<std::size_t>(index)].view(), params().norm_epsilon};
  }

  Llama4Params config_;
  std::vector<PlacedVector> ones_;  // [layers] of [k_dim]
};

void Llama4::RunMixer(Pass& pass, int index, const TensorView& h) {
  const AttentionWeights& w = layer(index).attention.weights;
  const Pass::Scope scope(pass);
  const auto [q, k, v, att] = TakeAttention(pass, w);
  pass.Linear(h, {{w.q, q}, {w.k, k}, {w.v, v}});
  if (config_.Rotates(index)) {
    pass.Rope(q, rope(index));
    pass.Rope(k, rope(index));
    if (config_.head_norms) {
      pass.RmsNorm(q, HeadNorm(index), q);
      pass.RmsNorm(k, HeadNorm(index), k);
    }
  } else {
    pass.ScaleTokens(q, QueryFactorsOf(pass));
  }
  pass.Attention(index, q, k, v, {.scale = params().attention_scale}, att);
  pass.Linear(att, {{w.o, h}});
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

Result<std::unique_ptr<Decoder>> MakeLlama4(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks;
  ExpertParams& experts = blocks.experts;
  KVCACHE_ASSIGN_OR_RETURN(experts,
                           ReadExpertParams(keys, params, {.sigmoid = true, .renormalize = false}));
  if (experts.count == 0)
    return Unsupported(StrCat(keys.Key("expert_count"), " is 0 or missing; llama4 needs experts"));
  if (experts.renormalize) return keys.Unsupported("expert_weights_norm");
  experts.gate = RouterOptions::Gate::kSigmoid;
  experts.weigh_input = true;
  experts.shared_ffn = experts.ffn;
  KVCACHE_ASSIGN_OR_RETURN(experts.layer_step, keys.IntOr("interleave_moe_layer_step", 1 << 16, 1));
  KVCACHE_ASSIGN_OR_RETURN(const Llama4Params config, ReadConfig(keys, experts));
  for (int i = 0; i < params.layers; ++i) {
    blocks.spans.push_back({.chunk = config.Rotates(i) ? config.chunk : 0});
  }
  blocks.query_factors = QueryFactors(config.temperature, config.temperature_length, 1);
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  IgnoreVisionAndAudio(keys, source.weights);
  return source.Make<Llama4>(std::move(params), std::move(blocks), config);
}

}  // namespace kvcache
