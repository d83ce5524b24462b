// The lfm2 and lfm2moe architectures (Liquid's LFM2). Most layers are short convolutions between
// two gates:
//
//   (b, c, x) = Win n        y = Wout (c × conv(b × x))
//
// The others are grouped-query attention with head norms. A layer with 0 KV heads is a convolution.
// Every layer has a gated feed-forward part. In lfm2moe all layers except the first ones have
// experts, scored by sigmoids and chosen with a bias.
//
// Source: Liquid AI, "LFM2 technical report" (2025), and transformers' modeling_lfm2.
#include <utility>
#include <variant>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/feed_forward.h"
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
  struct Layer {
    Norm mixer_norm, ffn_norm;  // [hidden_size]
    std::variant<Convolution, SelfAttention> mixer;
    FeedForward ffn;
  };

  Result<Convolution> LoadConvolution(WeightReader& reader, const std::string& prefix) const;
  // Both replace h by the mixer's result for it.
  void RunMixer(Pass& pass, int index, const Convolution& mixer, const TensorView& h);
  void RunMixer(Pass& pass, int index, const SelfAttention& mixer, const TensorView& h);

  ExpertParams experts_;
  RopeTable rope_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Result<Lfm2::Convolution> Lfm2::LoadConvolution(WeightReader& reader,
                                                const std::string& prefix) const {
  const std::int64_t hidden_size = params().hidden_size;
  Convolution c;
  KVCACHE_ASSIGN_OR_RETURN(c.in, reader.LinearParts(prefix + "shortconv.in_proj", hidden_size,
                                                    {hidden_size, hidden_size, hidden_size}));
  KVCACHE_ASSIGN_OR_RETURN(c.taps.taps, reader.FloatTable(prefix + "shortconv.conv.weight",
                                                          recurrent().taps, hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(c.out,
                           reader.Linear(prefix + "shortconv.out_proj", hidden_size, hidden_size));
  return c;
}

Status Lfm2::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.mixer_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  if (IsRecurrent(index)) {
    KVCACHE_ASSIGN_OR_RETURN(layer.mixer, LoadConvolution(reader, prefix));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(layer.mixer,
                             SelfAttention::Load(reader, p, index, {.head_norms = true}));
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, FeedForward::Load(reader, p, experts_, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Lfm2::RunMixer(Pass& pass, int index, const Convolution& mixer, const TensorView& h) {
  const Pass::Scope scope(pass);
  const TensorView b = pass.TakeHidden(params().hidden_size);
  const TensorView c = pass.TakeHidden(params().hidden_size);
  const TensorView x = pass.TakeHidden(params().hidden_size);
  pass.Linear(h, {{mixer.in[0], b}, {mixer.in[1], c}, {mixer.in[2], x}});
  // The convolution must not write to its input, so it writes to h, which is no longer needed.
  pass.Multiply(x, b);
  pass.ShortConv(index, x, mixer.taps, h);
  pass.Multiply(c, h);
  pass.Linear(c, {{mixer.out, h}});
}

void Lfm2::RunMixer(Pass& pass, int index, const SelfAttention& mixer, const TensorView& h) {
  mixer.Run(pass, index, h,
            {.rope = rope_.params(), .attention = {.scale = params().attention_scale}}, h);
}

void Lfm2::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.mixer_norm, h);
  std::visit([&](const auto& mixer) { RunMixer(pass, index, mixer, h); }, layer.mixer);
  pass.Add(x, h);

  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, plan_, h, h);
  pass.Add(x, h);
}

Result<ExpertParams> ReadLfm2Experts(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params, {.sigmoid = true}));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  experts.selection_bias = true;
  // The tensors tell which layers are dense; the key is read so that it counts as known.
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
    KVCACHE_ASSIGN_OR_RETURN(experts, ReadLfm2Experts(keys, params));
  }
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, weights));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(std::make_unique<Lfm2>(backend, name, std::move(params), std::move(recurrent),
                                            experts, std::move(rope)),
                     weights, file);
}

}  // namespace kvcache
