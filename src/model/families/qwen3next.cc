// The qwen3next, qwen35 and qwen35moe architectures (Qwen3-Next, Qwen3.5, Qwen3.6): three gated delta
// nets to one attention layer. Every layer has a mixture of experts and a shared expert; those of qwen35
// have one gated network.
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
//                  qwen3next                           qwen35, qwen35moe
//   b and α        one matrix, alternating by group    a matrix each
//   value head h   key head h / (heads / key heads)    key head h mod key heads
//   rotation       of dimension_count values           of the pairs that dimension_sections cover
//
// Source: Yang, Kautz, Hatamizadeh, "Gated delta networks" (2024); Qwen team, "Qwen3-Next" (2025),
// and transformers' modeling_qwen3_next.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "model/families/architectures.h"
#include "model/graph/hybrid_decoder.h"

namespace kvcache {
namespace {

constexpr float kUnitEpsilon = 1e-6f;  // added under the root of q's and k's squared lengths

// Returns [share × groups, batch] as [share, groups, batch].
TensorView Split(const TensorView& x, std::int64_t share) {
  return TensorView::Dense(x.data, DType::kF32, share, x.dims[0] / share, x.dims[1]);
}

// The products of a gated delta net's input.
struct DeltaViews {
  TensorView qkv, z, beta, steps;
};

class Qwen3Next final : public HybridDecoder {
 public:
  using HybridDecoder::HybridDecoder;

 protected:
  Status LoadMixer(WeightReader& reader, int index, SelfAttention* attention) override;
  void RunMixer(Pass& pass, int index, const TensorView& h) override;
  ScanOptions scan_options() const override {
    return {.rule = ScanRule::kDelta,
            .groups = is_next() ? ScanGroups::kNeighbors : ScanGroups::kRotating,
            .norm_epsilon = kUnitEpsilon,
            .query_scale = 1.0f / std::sqrt(static_cast<float>(recurrent().k_dim))};
  }

 private:
  struct DeltaNet {
    Projection qkv, z;
    Projection ba;        // qwen3next: b and α, alternating by group of heads
    Projection b, alpha;  // the others
    ConvTaps conv;
    TensorView dt_bias, rates;  // [heads]
    Norm norm;                  // [v_dim]
    Projection out;
  };

  bool is_next() const { return architecture() == "qwen3next"; }
  Status LoadDeltaNet(WeightReader& reader, int index);
  Status LoadAttention(WeightReader& reader, int index, SelfAttention* attention) const;
  void RunDeltaNet(Pass& pass, int index, const DeltaNet& net, const TensorView& h);
  // Computes the net's products of h. `beta` and `steps` get b and α.
  void Project(Pass& pass, const DeltaNet& net, const TensorView& h, const DeltaViews& to);
  void RunAttention(Pass& pass, int index, const SelfAttention& attention, const TensorView& h);

  std::map<int, DeltaNet> nets_;  // by layer
};

Status Qwen3Next::LoadDeltaNet(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const std::int64_t hidden_size = params().hidden_size;
  const RecurrentParams& r = recurrent();
  DeltaNet& net = nets_[index];
  KVCACHE_ASSIGN_OR_RETURN(net.qkv, reader.Linear(prefix + "attn_qkv", hidden_size, r.channels));
  KVCACHE_ASSIGN_OR_RETURN(net.z, reader.Linear(prefix + "attn_gate", hidden_size, r.inner()));
  if (is_next()) {
    KVCACHE_ASSIGN_OR_RETURN(net.ba, reader.Linear(prefix + "ssm_ba", hidden_size, 2 * r.heads));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(net.b, reader.Linear(prefix + "ssm_beta", hidden_size, r.heads));
    KVCACHE_ASSIGN_OR_RETURN(net.alpha, reader.Linear(prefix + "ssm_alpha", hidden_size, r.heads));
  }
  KVCACHE_ASSIGN_OR_RETURN(net.conv.taps,
                           reader.FloatTable(prefix + "ssm_conv1d.weight", r.taps, r.channels));
  KVCACHE_ASSIGN_OR_RETURN(net.dt_bias, reader.Vector(prefix + "ssm_dt.bias", r.heads));
  KVCACHE_ASSIGN_OR_RETURN(net.rates, reader.Vector(prefix + "ssm_a", r.heads));
  KVCACHE_ASSIGN_OR_RETURN(net.norm,
                           reader.RmsNorm(prefix + "ssm_norm", r.v_dim, params().norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(net.out, reader.Linear(prefix + "ssm_out", r.inner(), hidden_size));
  return Status::Ok();
}

// The projection of the queries has each head's query, then its gate.
Status Qwen3Next::LoadAttention(WeightReader& reader, int index, SelfAttention* attention) const {
  const std::string prefix = LayerPrefix(index) + "attn_";
  const LayerParams& p = params();
  AttentionWeights& w = attention->weights;
  w.heads = p.heads[static_cast<std::size_t>(index)];
  w.kv_heads = p.kv_heads[static_cast<std::size_t>(index)];
  w.k_dim = w.v_dim = p.k_dim;
  const std::int64_t queries = w.heads * w.k_dim;
  const std::int64_t keys = w.kv_heads * w.k_dim;
  KVCACHE_ASSIGN_OR_RETURN(w.q, reader.Linear(prefix + "q", p.hidden_size, 2 * queries));
  KVCACHE_ASSIGN_OR_RETURN(w.k, reader.Linear(prefix + "k", p.hidden_size, keys));
  KVCACHE_ASSIGN_OR_RETURN(w.v, reader.Linear(prefix + "v", p.hidden_size, keys));
  KVCACHE_ASSIGN_OR_RETURN(w.o, reader.Linear(prefix + "output", queries, p.hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(attention->q_norm,
                           reader.RmsNorm(prefix + "q_norm", p.k_dim, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(attention->k_norm,
                           reader.RmsNorm(prefix + "k_norm", p.k_dim, p.norm_epsilon));
  return Status::Ok();
}

Status Qwen3Next::LoadMixer(WeightReader& reader, int index, SelfAttention* attention) {
  return IsRecurrent(index) ? LoadDeltaNet(reader, index) : LoadAttention(reader, index, attention);
}

void Qwen3Next::RunMixer(Pass& pass, int index, const TensorView& h) {
  if (!IsRecurrent(index)) return RunAttention(pass, index, layer(index).attention, h);
  RunDeltaNet(pass, index, nets_.at(index), h);
}

void Qwen3Next::Project(Pass& pass, const DeltaNet& net, const TensorView& h,
                        const DeltaViews& to) {
  if (!is_next()) {
    return pass.Linear(h,
                       {{net.qkv, to.qkv}, {net.z, to.z}, {net.b, to.beta}, {net.alpha, to.steps}});
  }
  const RecurrentParams& r = recurrent();
  const std::int64_t share = r.heads / r.groups;
  const Pass::Scope scope(pass);
  const TensorView ba = pass.Take(share, 2 * r.groups, pass.batch());
  pass.Linear(h, {{net.qkv, to.qkv}, {net.z, to.z}, {net.ba, ba}});
  // ba alternates, by group of heads, between the inputs of β and α; the scan needs each dense.
  pass.Copy(Pass::StridedHeads(ba, 0), Split(to.beta, share));
  pass.Copy(Pass::StridedHeads(ba, 1), Split(to.steps, share));
}

void Qwen3Next::RunDeltaNet(Pass& pass, int index, const DeltaNet& net, const TensorView& h) {
  const RecurrentParams& r = recurrent();
  const Pass::Scope scope(pass);
  const TensorView raw = pass.TakeHidden(r.channels);
  const TensorView qkv = pass.TakeHidden(r.channels);
  const TensorView z = pass.TakeHeads(r.v_dim, r.heads);
  const TensorView beta = pass.TakeHidden(r.heads);
  const TensorView steps = pass.TakeHidden(r.heads);
  const TensorView decays = pass.TakeHidden(r.heads);
  const TensorView out = pass.TakeHeads(r.v_dim, r.heads);

  Project(pass, net, h, {.qkv = raw, .z = z, .beta = beta, .steps = steps});
  pass.ShortConv(index, raw, net.conv, qkv);
  pass.Activate(qkv, Activation::kSilu);
  pass.Activate(beta, Activation::kSigmoid);
  pass.DecayRates(steps, net.dt_bias, net.rates, steps, decays);
  pass.Scan(index,
            {.keys = pass.HeadsOf(qkv, r.key_size(), r.k_dim, r.groups),
             .queries = pass.HeadsOf(qkv, 0, r.k_dim, r.groups),
             .values = pass.HeadsOf(qkv, 2 * r.key_size(), r.v_dim, r.heads),
             .decays = decays,
             .steps = beta},
            scan_options(), out);
  pass.RmsNorm(out, net.norm, out);
  pass.Gate(z, out, Activation::kSilu);
  pass.Linear(z, {{net.out, h}});
}

void Qwen3Next::RunAttention(Pass& pass, int index, const SelfAttention& attention,
                             const TensorView& h) {
  const AttentionWeights& w = attention.weights;
  const Pass::Scope scope(pass);
  const TensorView both = pass.TakeHeads(w.k_dim, 2 * w.heads);
  const TensorView gate = pass.TakeHeads(w.k_dim, w.heads);
  const auto [q, k, v, att] = TakeAttention(pass, w);
  pass.Linear(h, {{w.q, both}, {w.k, k}, {w.v, v}});
  // `both` alternates between a head's query and its gate.
  pass.RmsNorm(Pass::StridedHeads(both, 0), *attention.q_norm, q);
  pass.Copy(Pass::StridedHeads(both, 1), gate);
  pass.RmsNorm(k, *attention.k_norm, k);
  pass.Rope(q, rope(index));
  pass.Rope(k, rope(index));
  pass.Attention(index, q, k, v, {.scale = params().attention_scale}, att);
  pass.Gate(gate, att, Activation::kSigmoid);
  pass.Linear(gate, {{w.o, h}});
}

// Reads the experts, which qwen35 does not have.
Result<ExpertParams> ReadQwenExperts(ModelSource& source, const LayerParams& params) {
  KeyReader& keys = source.keys;
  if (source.name == "qwen35") return ExpertParams();
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  KVCACHE_ASSIGN_OR_RETURN(experts.shared_ffn,
                           keys.IntOr("expert_shared_feed_forward_length", 1 << 23, params.ffn[0]));
  experts.gates_shared = true;
  if (source.name == "qwen35moe") experts.weights_scale = 1.0f;  // whatever the key says
  return experts;
}

// The sections share out the pairs among the coordinates of a position, which are equal for text:
// pair p belongs to coordinate p mod 3 while that section has pairs left. Other pairs are not rotated.
Status ReadSections(KeyReader& keys, RopeTable* rope) {
  constexpr std::string_view kKey = "rope.dimension_sections";
  keys.Ignore(kKey);
  KVCACHE_ASSIGN_OR_RETURN(const GgufInts sections, keys.Ints(kKey));
  std::vector<std::int64_t> sizes(sections.begin(), sections.end());
  sizes.resize(std::max<std::size_t>(sizes.size(), 4));
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0 || size > rope->dims) return keys.Unsupported(kKey);
    sum += size;
  }
  if (sum == 0 || sizes.size() > 4) return keys.Unsupported(kKey);
  for (std::size_t i = 0; i < rope->inv_freq.size(); ++i) {
    const auto pair = static_cast<std::int64_t>(i) % sum;
    const auto coordinate = static_cast<std::size_t>(pair % 3);
    if (pair >= 3 * sizes[coordinate]) rope->inv_freq[i] = 0.0f;
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeQwen3Next(ModelSource& source) {
  KeyReader& keys = source.keys;
  const bool partial = source.name == "qwen35moe";
  KVCACHE_ASSIGN_OR_RETURN(
      LayerParams params,
      ReadLayerParams(keys, partial ? LayerKinds::kPartial : LayerKinds::kHybrid));
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  BlockParams blocks{.ffn_norm = "post_attention_norm", .can_have_head = true};
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadQwenExperts(source, params));
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  if (source.name != "qwen3next") KVCACHE_RETURN_IF_ERROR(ReadSections(keys, &blocks.rope));
  return source.Make<Qwen3Next>(std::move(params), std::move(recurrent), std::move(blocks));
}

}  // namespace kvcache
