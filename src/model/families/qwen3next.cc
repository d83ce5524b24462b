// The qwen3next architecture: three gated delta nets to one attention layer. Every layer has a
// mixture of experts and a shared expert.
//
// A gated delta net keeps a matrix S per head. Each token corrects the value that S holds for its
// key k. q, k and v come from a short convolution, q and k are normalised to length 1, and z is a
// gate:
//
//   S = e^g S + β (v - e^g S k) kᵀ       g = a · softplus(α + bias), β = sigmoid(b)
//   y = Wout (rms(S q / √d) × silu(z))
//
// Attention layers norm each head's query and key and rotate a part of their values. They multiply
// attention's result by the sigmoid of a gate, the second half of the query projection.
//
// Source: Yang, Kautz, Hatamizadeh, "Gated delta networks" (2024); Qwen team, "Qwen3-Next" (2025),
// and transformers' modeling_qwen3_next.
#include <cmath>
#include <utility>
#include <variant>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/feed_forward.h"
#include "model/graph/hybrid_decoder.h"
#include "model/graph/shared_experts.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

constexpr float kUnitEpsilon = 1e-6f;  // added under the root of q's and k's squared lengths

// Returns [share × groups, batch] as [share, groups, batch].
TensorView Split(const TensorView& x, std::int64_t share) {
  return TensorView::Dense(x.data, DType::kF32, share, x.dims[0] / share, x.dims[1]);
}

class Qwen3Next final : public HybridDecoder {
 public:
  Qwen3Next(Backend& backend, std::string_view name, LayerParams params, RecurrentParams recurrent,
            ExpertParams experts, RopeTable rope)
      : HybridDecoder(backend, name, std::move(params), std::move(recurrent)),
        experts_(experts),
        rope_(std::move(rope)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  bool can_have_head() const override { return true; }
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }
  ScanOptions scan_options() const override {
    return {.rule = ScanRule::kDelta,
            .norm_epsilon = kUnitEpsilon,
            .query_scale = 1.0f / std::sqrt(static_cast<float>(recurrent().k_dim))};
  }

 private:
  struct DeltaNet {
    Projection qkv, z, ba;  // ba: b and α, alternating by group of heads
    ConvTaps conv;
    TensorView dt_bias, rates;  // [heads]
    Norm norm;                  // [v_dim]
    Projection out;
  };
  struct Attention {
    Projection q, k, v, o;  // q: each head's query, then its gate
    Norm q_norm, k_norm;    // [head]
  };
  struct Layer {
    Norm mixer_norm, ffn_norm;  // [hidden_size]
    std::variant<DeltaNet, Attention> mixer;
    SharedExperts ffn;
  };

  Result<DeltaNet> LoadDeltaNet(WeightReader& reader, const std::string& prefix) const;
  Result<Attention> LoadAttention(WeightReader& reader, const std::string& prefix, int index) const;
  // Both replace h by the mixer's result for it.
  void RunMixer(Pass& pass, int index, const DeltaNet& mixer, const TensorView& h);
  void RunMixer(Pass& pass, int index, const Attention& mixer, const TensorView& h);

  ExpertParams experts_;
  RopeTable rope_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Result<Qwen3Next::DeltaNet> Qwen3Next::LoadDeltaNet(WeightReader& reader,
                                                    const std::string& prefix) const {
  const std::int64_t hidden_size = params().hidden_size;
  const RecurrentParams& r = recurrent();
  DeltaNet net;
  KVCACHE_ASSIGN_OR_RETURN(net.qkv, reader.Linear(prefix + "attn_qkv", hidden_size, r.channels));
  KVCACHE_ASSIGN_OR_RETURN(net.z, reader.Linear(prefix + "attn_gate", hidden_size, r.inner()));
  KVCACHE_ASSIGN_OR_RETURN(net.ba, reader.Linear(prefix + "ssm_ba", hidden_size, 2 * r.heads));
  KVCACHE_ASSIGN_OR_RETURN(net.conv.taps,
                           reader.FloatTable(prefix + "ssm_conv1d.weight", r.taps, r.channels));
  KVCACHE_ASSIGN_OR_RETURN(net.dt_bias, reader.Vector(prefix + "ssm_dt.bias", r.heads));
  KVCACHE_ASSIGN_OR_RETURN(net.rates, reader.Vector(prefix + "ssm_a", r.heads));
  KVCACHE_ASSIGN_OR_RETURN(net.norm,
                           reader.RmsNorm(prefix + "ssm_norm", r.v_dim, params().norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(net.out, reader.Linear(prefix + "ssm_out", r.inner(), hidden_size));
  return net;
}

Result<Qwen3Next::Attention> Qwen3Next::LoadAttention(WeightReader& reader,
                                                      const std::string& prefix, int index) const {
  const LayerParams& p = params();
  const auto at = static_cast<std::size_t>(index);
  const std::int64_t queries = std::int64_t{p.heads[at]} * p.k_dim;
  const std::int64_t keys = std::int64_t{p.kv_heads[at]} * p.k_dim;
  Attention a;
  KVCACHE_ASSIGN_OR_RETURN(a.q, reader.Linear(prefix + "attn_q", p.hidden_size, 2 * queries));
  KVCACHE_ASSIGN_OR_RETURN(a.k, reader.Linear(prefix + "attn_k", p.hidden_size, keys));
  KVCACHE_ASSIGN_OR_RETURN(a.v, reader.Linear(prefix + "attn_v", p.hidden_size, keys));
  KVCACHE_ASSIGN_OR_RETURN(a.o, reader.Linear(prefix + "attn_output", queries, p.hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(a.q_norm,
                           reader.RmsNorm(prefix + "attn_q_norm", p.k_dim, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(a.k_norm,
                           reader.RmsNorm(prefix + "attn_k_norm", p.k_dim, p.norm_epsilon));
  return a;
}

Status Qwen3Next::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.mixer_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  if (IsRecurrent(index)) {
    KVCACHE_ASSIGN_OR_RETURN(layer.mixer, LoadDeltaNet(reader, prefix));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(layer.mixer, LoadAttention(reader, prefix, index));
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm, reader.RmsNorm(prefix + "post_attention_norm",
                                                          p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn,
                           SharedExperts::Routed(reader, p, experts_, experts_.shared_ffn, index,
                                                 SharedExpertGate::kSigmoid));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Qwen3Next::RunMixer(Pass& pass, int index, const DeltaNet& mixer, const TensorView& h) {
  const RecurrentParams& r = recurrent();
  const std::int64_t share = r.heads / r.groups;
  const Pass::Scope scope(pass);
  const TensorView raw = pass.TakeHidden(r.channels);
  const TensorView qkv = pass.TakeHidden(r.channels);
  const TensorView z = pass.TakeHeads(r.v_dim, r.heads);
  const TensorView ba = pass.Take(share, 2 * r.groups, pass.batch());
  const TensorView beta = pass.TakeHidden(r.heads);
  const TensorView steps = pass.TakeHidden(r.heads);
  const TensorView decays = pass.TakeHidden(r.heads);
  const TensorView out = pass.TakeHeads(r.v_dim, r.heads);

  pass.Linear(h, {{mixer.qkv, raw}, {mixer.z, z}, {mixer.ba, ba}});
  pass.ShortConv(index, raw, mixer.conv, qkv);
  pass.Activate(qkv, Activation::kSilu);
  // ba alternates, by group of heads, between the inputs of β and α; the scan needs each dense.
  pass.Copy(Pass::StridedHeads(ba, 0), Split(beta, share));
  pass.Copy(Pass::StridedHeads(ba, 1), Split(steps, share));
  pass.Activate(beta, Activation::kSigmoid);
  pass.DecayRates(steps, mixer.dt_bias, mixer.rates, steps, decays);
  pass.Scan(index,
            {.keys = pass.HeadsOf(qkv, r.key_size(), r.k_dim, r.groups),
             .queries = pass.HeadsOf(qkv, 0, r.k_dim, r.groups),
             .values = pass.HeadsOf(qkv, 2 * r.key_size(), r.v_dim, r.heads),
             .decays = decays,
             .steps = beta},
            scan_options(), out);
  pass.RmsNorm(out, mixer.norm, out);
  pass.Gate(z, out, Activation::kSilu);
  pass.Linear(z, {{mixer.out, h}});
}

void Qwen3Next::RunMixer(Pass& pass, int index, const Attention& mixer, const TensorView& h) {
  const auto at = static_cast<std::size_t>(index);
  const std::int64_t dim = params().k_dim;
  const std::int64_t heads = params().heads[at];
  const std::int64_t kv_heads = params().kv_heads[at];
  const Pass::Scope scope(pass);
  const TensorView both = pass.TakeHeads(dim, 2 * heads);
  const TensorView q = pass.TakeHeads(dim, heads);
  const TensorView gate = pass.TakeHeads(dim, heads);
  const TensorView k = pass.TakeHeads(dim, kv_heads);
  const TensorView v = pass.TakeHeads(dim, kv_heads);
  const TensorView att = pass.TakeHeads(dim, heads);
  pass.Linear(h, {{mixer.q, both}, {mixer.k, k}, {mixer.v, v}});
  // `both` alternates between a head's query and its gate.
  pass.RmsNorm(Pass::StridedHeads(both, 0), mixer.q_norm, q);
  pass.Copy(Pass::StridedHeads(both, 1), gate);
  pass.RmsNorm(k, mixer.k_norm, k);
  pass.Rope(q, rope_.params());
  pass.Rope(k, rope_.params());
  pass.Attention(index, q, k, v, {.scale = params().attention_scale}, att);
  pass.Gate(gate, att, Activation::kSigmoid);
  pass.Linear(gate, {{mixer.o, h}});
}

void Qwen3Next::RunLayer(Pass& pass, int index, const TensorView& x) {
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

}  // namespace

Result<std::unique_ptr<Model>> LoadQwen3Next(const GgufFile& file, std::string_view name,
                                             Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys, LayerKinds::kHybrid));
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  KVCACHE_ASSIGN_OR_RETURN(experts.shared_ffn,
                           keys.IntOr("expert_shared_feed_forward_length", 1 << 23, params.ffn[0]));
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, weights));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(std::make_unique<Qwen3Next>(backend, name, std::move(params),
                                                 std::move(recurrent), experts, std::move(rope)),
                     weights, file);
}

}  // namespace kvcache
