// The granitehybrid architecture (IBM's Granite 4.0 H): Mamba-2 layers, and a few layers of
// grouped-query attention, mostly without rotation. The feed-forward part is dense, or experts with
// a shared expert. The file gives factors for the embedding and for the results that layers add,
// and a divisor of the logits.
//
// A Mamba-2 layer gets x, B and C from a short convolution; z is a gate. For each head:
//
//   S = e^{a Δ} S + Δ x Bᵀ       y = S C + d x       Δ = softplus(δ + bias)
//   out = Wout · norm(y × silu(z))        normed over each group's heads
//
// Source: Dao and Gu, "Transformers are SSMs" (2024); IBM, "Granite 4.0" (2025), and transformers'
// modeling_granitemoehybrid.
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/feed_forward.h"
#include "model/graph/hybrid_decoder.h"
#include "model/graph/shared_experts.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

struct GraniteParams {
  float residual_scale = 1.0f;  // factor on the results of attention and feed-forward
  bool rotates = true;          // whether queries and keys are rotated
};

class GraniteHybrid final : public HybridDecoder {
 public:
  GraniteHybrid(Backend& backend, std::string_view name, LayerParams params,
                RecurrentParams recurrent, ExpertParams experts, GraniteParams granite,
                RopeTable rope)
      : HybridDecoder(backend, name, std::move(params), std::move(recurrent)),
        experts_(experts),
        granite_(granite),
        rope_(std::move(rope)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return granite_.rotates ? rope_.params() : RopeParams{}; }

 private:
  struct Mamba {
    std::vector<Projection> in;  // z, the convolution's channels, δ
    ConvTaps conv;
    TensorView dt_bias, rates;    // [heads]
    std::span<const float> skip;  // [heads]
    std::vector<Norm> norms;      // of each group: [inner / groups]
    Projection out;
  };
  struct Layer {
    Norm mixer_norm, ffn_norm;  // [hidden_size]
    std::variant<Mamba, SelfAttention> mixer;
    FeedForward ffn;
    std::optional<SharedExpert> shared;
  };

  Result<Mamba> LoadMamba(WeightReader& reader, const std::string& prefix) const;
  // Both replace h by the mixer's result for it.
  void RunMixer(Pass& pass, int index, const Mamba& mixer, const TensorView& h);
  void RunMixer(Pass& pass, int index, const SelfAttention& mixer, const TensorView& h);
  void RunFeedForward(Pass& pass, const Layer& layer, const TensorView& h);
  // Computes x += r h, where r is the residual factor. Overwrites h.
  void AddScaled(Pass& pass, const TensorView& x, const TensorView& h) const;

  ExpertParams experts_;
  GraniteParams granite_;
  RopeTable rope_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Result<GraniteHybrid::Mamba> GraniteHybrid::LoadMamba(WeightReader& reader,
                                                      const std::string& prefix) const {
  const std::int64_t hidden_size = params().hidden_size;
  const RecurrentParams& r = recurrent();
  Mamba m;
  KVCACHE_ASSIGN_OR_RETURN(
      m.in, reader.LinearParts(prefix + "ssm_in", hidden_size, {r.inner(), r.channels, r.heads}));
  KVCACHE_ASSIGN_OR_RETURN(m.conv.taps,
                           reader.FloatTable(prefix + "ssm_conv1d.weight", r.taps, r.channels));
  if (reader.Has(prefix + "ssm_conv1d.bias")) {
    KVCACHE_ASSIGN_OR_RETURN(m.conv.bias, reader.Vector(prefix + "ssm_conv1d.bias", r.channels));
  }
  KVCACHE_ASSIGN_OR_RETURN(m.dt_bias, reader.Vector(prefix + "ssm_dt.bias", r.heads));
  KVCACHE_ASSIGN_OR_RETURN(const TensorView rates, reader.FloatTable(prefix + "ssm_a", 1, r.heads));
  m.rates = TensorView::Dense(rates.data, DType::kF32, r.heads);
  KVCACHE_ASSIGN_OR_RETURN(const TensorView skip, reader.FloatTable(prefix + "ssm_d", 1, r.heads));
  m.skip = {skip.as<const float>(), static_cast<std::size_t>(r.heads)};
  const std::int64_t each = r.inner() / r.groups;
  KVCACHE_ASSIGN_OR_RETURN(const TensorView norms,
                           reader.FloatTable(prefix + "ssm_norm.weight", each, r.groups));
  for (std::int64_t group = 0; group < r.groups; ++group) {
    std::byte* const weight = norms.data + group * norms.stride_bytes[1];
    m.norms.push_back({TensorView::Dense(weight, DType::kF32, each), params().norm_epsilon});
  }
  KVCACHE_ASSIGN_OR_RETURN(m.out, reader.Linear(prefix + "ssm_out", r.inner(), hidden_size));
  return m;
}

Status GraniteHybrid::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.mixer_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  if (IsRecurrent(index)) {
    KVCACHE_ASSIGN_OR_RETURN(layer.mixer, LoadMamba(reader, prefix));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(layer.mixer, SelfAttention::Load(reader, p, index,
                                                              {.bias = Bias::kIfPresent,
                                                               .output_bias = Bias::kIfPresent}));
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, FeedForward::Load(reader, p, experts_, index));
  if (experts_.shared_ffn > 0) {
    KVCACHE_ASSIGN_OR_RETURN(layer.shared,
                             SharedExpert::Load(reader, prefix, p.hidden_size, experts_.shared_ffn,
                                                SharedExpertGate::kNone));
  }
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void GraniteHybrid::RunMixer(Pass& pass, int index, const Mamba& mixer, const TensorView& h) {
  const RecurrentParams& r = recurrent();
  const Pass::Scope scope(pass);
  const TensorView z = pass.TakeHeads(r.v_dim, r.heads);
  const TensorView raw = pass.TakeHidden(r.channels);
  const TensorView xbc = pass.TakeHidden(r.channels);
  const TensorView steps = pass.TakeHidden(r.heads);
  const TensorView decays = pass.TakeHidden(r.heads);
  const TensorView y = pass.TakeHeads(r.v_dim, r.heads);

  pass.Linear(h, {{mixer.in[0], z}, {mixer.in[1], raw}, {mixer.in[2], steps}});
  pass.ShortConv(index, raw, mixer.conv, xbc);
  pass.Activate(xbc, Activation::kSilu);
  pass.DecayRates(steps, mixer.dt_bias, mixer.rates, steps, decays);
  pass.Scan(index,
            {.keys = pass.HeadsOf(xbc, r.inner(), r.k_dim, r.groups),
             .queries = pass.HeadsOf(xbc, r.inner() + r.key_size(), r.k_dim, r.groups),
             .values = pass.HeadsOf(xbc, 0, r.v_dim, r.heads),
             .decays = decays,
             .steps = steps},
            {.rule = ScanRule::kAdd, .skip = mixer.skip}, y);
  pass.Gate(z, y, Activation::kSilu);
  // A group's heads are adjacent, so each group is one row per token, normed with its own weights.
  for (std::int64_t group = 0; group < r.groups; ++group) {
    const std::int64_t each = r.inner() / r.groups;
    const TensorView part = pass.HeadsOf(z, group * each, each, 1);
    pass.RmsNorm(part, mixer.norms[static_cast<std::size_t>(group)], part);
  }
  pass.Linear(z, {{mixer.out, h}});
}

void GraniteHybrid::RunMixer(Pass& pass, int index, const SelfAttention& mixer,
                             const TensorView& h) {
  mixer.Run(pass, index, h, {.rope = rope(index), .attention = {.scale = params().attention_scale}},
            h);
}

// Replaces h by the sum of the feed-forward part's and the shared expert's results.
void GraniteHybrid::RunFeedForward(Pass& pass, const Layer& layer, const TensorView& h) {
  if (!layer.shared.has_value()) return layer.ffn.Run(pass, plan_, h, h);
  const Pass::Scope scope(pass);
  const TensorView routed = pass.TakeHidden(params().hidden_size);
  // The experts must not overwrite h, which the shared expert reads next.
  layer.ffn.Run(pass, plan_, h, routed);
  layer.shared->Run(pass, h, h);
  pass.Add(h, routed);
}

void GraniteHybrid::AddScaled(Pass& pass, const TensorView& x, const TensorView& h) const {
  if (granite_.residual_scale != 1.0f) pass.Scale(h, granite_.residual_scale);
  pass.Add(x, h);
}

void GraniteHybrid::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.mixer_norm, h);
  std::visit([&](const auto& mixer) { RunMixer(pass, index, mixer, h); }, layer.mixer);
  AddScaled(pass, x, h);

  pass.RmsNorm(x, layer.ffn_norm, h);
  RunFeedForward(pass, layer, h);
  AddScaled(pass, x, h);
}

// Reads a factor; 1 if the key is missing or 0.
Result<float> Factor(KeyReader& keys, std::string_view key) {
  KVCACHE_ASSIGN_OR_RETURN(const double factor, keys.FloatOr(key, 1.0));
  return factor == 0.0 ? 1.0f : static_cast<float>(factor);
}

Result<GraniteParams> ReadGranite(KeyReader& keys, LayerParams* params) {
  GraniteParams granite;
  KVCACHE_ASSIGN_OR_RETURN(params->embedding_scale, Factor(keys, "embedding_scale"));
  KVCACHE_ASSIGN_OR_RETURN(granite.residual_scale, Factor(keys, "residual_scale"));
  KVCACHE_ASSIGN_OR_RETURN(const float divisor, Factor(keys, "logit_scale"));
  params->logit_scale = 1.0f / divisor;
  KVCACHE_ASSIGN_OR_RETURN(granite.rotates, keys.BoolOr("rope.scaling.finetuned", true));
  return granite;
}

}  // namespace

Result<std::unique_ptr<Model>> LoadGraniteHybrid(const GgufFile& file, std::string_view name,
                                                 Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys, LayerKinds::kHybrid));
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(const int shared,
                           keys.IntOrZero("expert_shared_feed_forward_length", 1 << 23));
  // Dense files may have the key as well; they have no shared expert.
  if (experts.count > 0) experts.shared_ffn = shared;
  KVCACHE_ASSIGN_OR_RETURN(const GraniteParams granite, ReadGranite(keys, &params));
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kInterleaved, weights));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(
      std::make_unique<GraniteHybrid>(backend, name, std::move(params), std::move(recurrent),
                                      experts, granite, std::move(rope)),
      weights, file);
}

}  // namespace kvcache
