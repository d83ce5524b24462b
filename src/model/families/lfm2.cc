// The lfm2 and lfm2moe architectures (Liquid's LFM2): most layers are short convolutions between
// two gates,
//
//   (b, c, x) = Win n        y = Wout (c × conv(b × x))
//
// the others grouped-query attention with norms of heads; every layer has a gated feed-forward
// part. A layer with 0 KV heads is a convolution. In lfm2moe all but the first layers have experts,
// gated by sigmoids and chosen with a bias.
//
// Source: Liquid AI, "LFM2 technical report" (2025), and transformers' modeling_lfm2.
#include <utility>
#include <variant>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/blocks.h"
#include "model/graph/hybrid_decoder.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

class Lfm2 final : public HybridDecoder {
 public:
  Lfm2(Backend& backend, std::string_view name, LayerParams params, RecurrentParams recurrent,
       ExpertParams experts, RopeTable rope)
      : HybridDecoder(backend, name, std::move(params), std::move(recurrent)),
        experts_(experts),
        rope_(std::move(rope)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }
  std::string_view output_norm_name() const override { return "token_embd_norm"; }

 private:
  struct Convolution {
    std::vector<Projection> in;  // b, c, x
    ConvTaps taps;
    Projection out;
  };
  struct Attention {
    AttentionWeights weights;
    Norm q_norm, k_norm;  // [head]
  };
  struct Layer {
    Norm mixer_norm, ffn_norm;  // [width]
    std::variant<Convolution, Attention> mixer;
    FeedForward ffn;
  };

  Result<Convolution> LoadConvolution(WeightReader& reader, const std::string& prefix) const;
  Result<Attention> LoadAttention(WeightReader& reader, const std::string& prefix, int index) const;
  // Both: h becomes the layer's answer to it.
  void RunMixer(Pass& pass, int index, const Convolution& mixer, const TensorView& h);
  void RunMixer(Pass& pass, int index, const Attention& mixer, const TensorView& h);

  ExpertParams experts_;
  RopeTable rope_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Result<Lfm2::Convolution> Lfm2::LoadConvolution(WeightReader& reader,
                                                const std::string& prefix) const {
  const std::int64_t width = params().width;
  Convolution c;
  KVCACHE_ASSIGN_OR_RETURN(
      c.in, reader.LinearParts(prefix + "shortconv.in_proj", width, {width, width, width}));
  KVCACHE_ASSIGN_OR_RETURN(
      c.taps.taps, reader.FloatTable(prefix + "shortconv.conv.weight", recurrent().taps, width));
  KVCACHE_ASSIGN_OR_RETURN(c.out, reader.Linear(prefix + "shortconv.out_proj", width, width));
  return c;
}

Result<Lfm2::Attention> Lfm2::LoadAttention(WeightReader& reader, const std::string& prefix,
                                            int index) const {
  const LayerParams& p = params();
  Attention a;
  KVCACHE_ASSIGN_OR_RETURN(a.weights, AttentionWeights::Load(reader, p, index));
  KVCACHE_ASSIGN_OR_RETURN(a.q_norm,
                           reader.RmsNorm(prefix + "attn_q_norm", p.k_dim, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(a.k_norm,
                           reader.RmsNorm(prefix + "attn_k_norm", p.k_dim, p.norm_epsilon));
  return a;
}

Status Lfm2::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.mixer_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.width, p.norm_epsilon));
  if (IsRecurrent(index)) {
    KVCACHE_ASSIGN_OR_RETURN(layer.mixer, LoadConvolution(reader, prefix));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(layer.mixer, LoadAttention(reader, prefix, index));
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.width, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, FeedForward::Load(reader, p, experts_, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Lfm2::RunMixer(Pass& pass, int index, const Convolution& mixer, const TensorView& h) {
  const Pass::Scope scope(pass);
  const TensorView b = pass.TakeHidden(params().width);
  const TensorView c = pass.TakeHidden(params().width);
  const TensorView x = pass.TakeHidden(params().width);
  pass.Linear(h, {{mixer.in[0], b}, {mixer.in[1], c}, {mixer.in[2], x}});
  pass.Multiply(x, b);
  pass.ShortConv(index, x, mixer.taps, h);
  pass.Multiply(c, h);
  pass.Linear(c, {{mixer.out, h}});
}

void Lfm2::RunMixer(Pass& pass, int index, const Attention& mixer, const TensorView& h) {
  const AttentionWeights& w = mixer.weights;
  const Pass::Scope scope(pass);
  const auto [q, k, v, att] = TakeAttention(pass, w);
  pass.Linear(h, {{w.q, q}, {w.k, k}, {w.v, v}});
  pass.RmsNorm(q, mixer.q_norm, q);
  pass.RmsNorm(k, mixer.k_norm, k);
  pass.Rope(q, rope_.params());
  pass.Rope(k, rope_.params());
  pass.Attention(index, q, k, v, {.scale = params().attention_scale}, att);
  pass.Linear(att, {{w.o, h}});
}

void Lfm2::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().width);
  pass.RmsNorm(x, layer.mixer_norm, h);
  std::visit([&](const auto& mixer) { RunMixer(pass, index, mixer, h); }, layer.mixer);
  pass.Add(x, h);

  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, plan_, h, h);
  pass.Add(x, h);
}

Result<ExpertParams> ReadExperts(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params, {.sigmoid = true}));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  experts.selection_bias = true;
  // Which layers they are is told by their tensors.
  KVCACHE_ASSIGN_OR_RETURN([[maybe_unused]] const int dense,
                           keys.IntOrZero("leading_dense_block_count", params.layers));
  return experts;
}

}  // namespace

Result<std::unique_ptr<Model>> LoadLfm2(const GgufFile& file, std::string_view name,
                                        Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys, LayerKinds::kHybrid));
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  ExpertParams experts;
  if (name == "lfm2moe") {
    KVCACHE_ASSIGN_OR_RETURN(experts, ReadExperts(keys, params));
  }
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, weights));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(std::make_unique<Lfm2>(backend, name, std::move(params), std::move(recurrent),
                                            experts, std::move(rope)),
                     weights, file);
}

}  // namespace kvcache
