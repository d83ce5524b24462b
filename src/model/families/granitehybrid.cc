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
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/hybrid_decoder.h"

namespace kvcache {
namespace {

class GraniteHybrid final : public HybridDecoder {
 public:
  using HybridDecoder::HybridDecoder;

 protected:
  Status LoadMixer(WeightReader& reader, int index, SelfAttention* attention) override;
  void RunMixer(Pass& pass, int index, const TensorView& h) override;

 private:
  struct Mamba {
    std::vector<Projection> in;  // z, the convolution's channels, δ
    ConvTaps conv;
    TensorView dt_bias, rates;    // [heads]
    std::span<const float> skip;  // [heads]
    std::vector<Norm> norms;      // of each group: [inner / groups]
    Projection out;
  };

  std::map<int, Mamba> mambas_;  // by layer
};

Status GraniteHybrid::LoadMixer(WeightReader& reader, int index, SelfAttention* attention) {
  if (!IsRecurrent(index)) return HybridDecoder::LoadMixer(reader, index, attention);
  const std::string prefix = LayerPrefix(index);
  const std::int64_t hidden_size = params().hidden_size;
  const RecurrentParams& r = recurrent();
  Mamba& m = mambas_[index];
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
  return Status::Ok();
}

void GraniteHybrid::RunMixer(Pass& pass, int index, const TensorView& h) {
  if (!IsRecurrent(index)) return HybridDecoder::RunMixer(pass, index, h);
  const Mamba& mixer = mambas_.at(index);
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

// Reads a factor; 1 if the key is missing or 0.
Result<float> Factor(KeyReader& keys, std::string_view key) {
  KVCACHE_ASSIGN_OR_RETURN(const double factor, keys.FloatOr(key, 1.0));
  return factor == 0.0 ? 1.0f : static_cast<float>(factor);
}

// Reads the factors that only this family has, and whether queries and keys are rotated.
Status ReadGranite(KeyReader& keys, LayerParams* params, BlockParams* blocks) {
  KVCACHE_ASSIGN_OR_RETURN(params->embedding_scale, Factor(keys, "embedding_scale"));
  KVCACHE_ASSIGN_OR_RETURN(blocks->residual_scale, Factor(keys, "residual_scale"));
  KVCACHE_ASSIGN_OR_RETURN(const float divisor, Factor(keys, "logit_scale"));
  params->logit_scale = 1.0f / divisor;
  KVCACHE_ASSIGN_OR_RETURN(const bool rotates, keys.BoolOr("rope.scaling.finetuned", true));
  if (!rotates) blocks->rope = {};
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeGraniteHybrid(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys, LayerKinds::kHybrid));
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent}};
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadExpertParams(keys, params));
  // Dense files may have the key as well; they have no shared expert.
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts.shared_ffn,
                           keys.IntOrZero("expert_shared_feed_forward_length", 1 << 23));
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  KVCACHE_RETURN_IF_ERROR(ReadGranite(keys, &params, &blocks));
  return source.Make<GraniteHybrid>(std::move(params), std::move(recurrent), std::move(blocks));
}

}  // namespace kvcache
