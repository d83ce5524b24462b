// The gemma3n architecture. A token has four states instead of one (AltUp). Each layer predicts all of them
// from one another, computes the first one, and corrects all by what it found there:
//
//   r(y)  = tanh(Wrouter (rms(y) × weight) / hidden_size)               four values
//   p_b   = x_b + Σ_a (Wpredict r(x_0))_ba x_a                          predictions
//   n     = rms(p_0);   l = n + rms(Wright Wleft n)                     Laurel
//   y     = (p_0 + rms(attention(n)) + l) / √2
//   y    += rms(ffn(rms(y)))
//   x_b   = p_b + (1 + (Wcorrect r(y))_b) (y - p_0)
//   x_b  += the layer input's result for x_0 × scale, for b > 0         (layer_inputs.h)
//
// Attention is gemma4's of one head size: queries and keys are normed, values are normed without a weight,
// scores are not scaled, and the last layers share keys and values (shared_kv.h).
//
// The first layers' feed-forward parts are sparse: a gate becomes max(gate - mean - m σ, 0) before GELU, with
// the deviation σ of the token's gates; m is 1.645, so that a twentieth of normal gates remains.
//
// The first state is the scaled embedding; the others are matrices times it, with its length. At the end the
// others' matrices' results get the first state's length, and the mean of the four is the model's.
//
// Source: Hugging Face's modeling_gemma3n.py; keys and tensors as llama.cpp reads them. As in llama.cpp, σ is
// that of a sample (n - 1).
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/families/gemma3n_states.h"
#include "model/graph/attention/shared_kv.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/graph/layer_inputs.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

constexpr int kLaurelRank = 64;
constexpr int kSparseLayers = 10;           // without the key
constexpr float kSparsity = 1.6448533535f;  // m: 95% of normal values are below mean + m σ
constexpr int kOwnKvLayers = 20;            // without the key

struct Gemma3nParams {
  std::vector<AttentionSpan> spans;  // [layers]
  RopeTable rope, window_rope;
  SharedKv shared;
  std::vector<float> sparsity;  // [layers] m; -∞: the layer is not sparse
  int input_size = 0;
};

class Gemma3n final : public Decoder {
 public:
  Gemma3n(Backend& backend, std::string_view name, LayerParams params, Gemma3nParams gemma)
      : Decoder(backend, name, std::move(params)), gemma_(std::move(gemma)) {}

 protected:
  Status LoadModelTensors(WeightReader& reader) override;
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) override;
  // Replaces the states [hidden_size, batch, 4].
  void RunLayer(Pass& pass, int index, const TensorView& states) override;
  AttentionSpan attention_span(int layer) const override {
    return gemma_.spans[static_cast<std::size_t>(layer)];
  }
  RopeParams rope(int layer) const override {
    return (attention_span(layer).window > 0 ? gemma_.window_rope : gemma_.rope).params();
  }
  std::vector<LayerMemory> Memory() const override;

 private:
  struct Layer {
    Norm attn_norm, attn_post_norm, ffn_norm, ffn_post_norm, laurel_norm;
    Norm q_norm, k_norm;  // [head]
    Projection q, o;
    std::optional<Projection> k, v;        // none if the layer shares another's
    Projection laurel_left, laurel_right;  // hidden_size → rank → hidden_size
    AltUp::Layer altup;
    TensorView input_scale;  // [hidden_size]
    GatedFeedForward ffn;
    PlacedVector head_ones;  // [v_dim]: the weights of the values' norm
    VectorLengths state_lengths;
    // Of a sparse layer: -m √(n / (n - 1)) [ffn]; else empty.
    PlacedVector cutoff;
    VectorLengths gate_lengths;
    InputGate input;
  };

  Status LoadAttention(WeightReader& reader, int index, Layer* layer) const;

  void RunLaurel(Pass& pass, const Layer& layer, const TensorView& n, const TensorView& out) const;
  void PutKeysAndValues(Pass& pass, int index, const TensorView& h) const;
  void Attend(Pass& pass, int index, const TensorView& h) const;
  // gates = max(gates - mean - m σ, 0)
  void Sparsify(Pass& pass, const Layer& layer, const TensorView& gates) const;
  void RunFeedForward(Pass& pass, int index, const TensorView& h) const;
  void AddInput(Pass& pass, int index, const TensorView& states) const;

  std::int64_t hidden() const { return params().hidden_size; }

  Gemma3nParams gemma_;
  AltUp altup_;
  LayerInputs inputs_;
  std::vector<Layer> layers_;
};

std::vector<LayerMemory> Gemma3n::Memory() const {
  std::vector<LayerMemory> layers = Decoder::Memory();
  for (LayerMemory& layer : layers) {
    if (!gemma_.shared.HasOwn(layer.layer)) layer.kv.kv_heads = 0;
  }
  return layers;
}

// ---- Loading

Status Gemma3n::LoadModelTensors(WeightReader& reader) {
  KVCACHE_ASSIGN_OR_RETURN(inputs_, LayerInputs::Load(reader, params(), gemma_.input_size));
  KVCACHE_ASSIGN_OR_RETURN(altup_, AltUp::Load(reader, backend(), hidden()));
  return Status::Ok();
}

Status Gemma3n::LoadAttention(WeightReader& reader, int index, Layer* layer) const {
  const std::string prefix = LayerPrefix(index) + "attn_";
  const LayerParams& p = params();
  const auto at = static_cast<std::size_t>(index);
  const std::int64_t queries = std::int64_t{p.heads[at]} * p.k_dim;
  const std::int64_t keys = std::int64_t{p.kv_heads[at]} * p.k_dim;
  KVCACHE_ASSIGN_OR_RETURN(layer->q, reader.Linear(prefix + "q", hidden(), queries));
  KVCACHE_ASSIGN_OR_RETURN(layer->q_norm,
                           reader.RmsNorm(prefix + "q_norm", p.k_dim, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer->o, reader.Linear(prefix + "output", queries, hidden()));
  if (!gemma_.shared.HasOwn(index)) {
    SharedKv::IgnoreTensors(reader, LayerPrefix(index));
    return Status::Ok();
  }
  KVCACHE_ASSIGN_OR_RETURN(layer->k, reader.Linear(prefix + "k", hidden(), keys));
  KVCACHE_ASSIGN_OR_RETURN(layer->v, reader.Linear(prefix + "v", hidden(), keys));
  KVCACHE_ASSIGN_OR_RETURN(layer->k_norm,
                           reader.RmsNorm(prefix + "k_norm", p.k_dim, p.norm_epsilon));
  return Status::Ok();
}

Status Gemma3n::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  const std::pair<Norm*, const char*> norms[] = {{&layer.attn_norm, "attn_norm"},
                                                 {&layer.attn_post_norm, "post_attention_norm"},
                                                 {&layer.ffn_norm, "ffn_norm"},
                                                 {&layer.ffn_post_norm, "post_ffw_norm"},
                                                 {&layer.laurel_norm, "laurel_post_norm"}};
  for (const auto& [norm, name] : norms) {
    KVCACHE_ASSIGN_OR_RETURN(*norm, reader.RmsNorm(prefix + name, hidden(), p.norm_epsilon));
  }
  KVCACHE_RETURN_IF_ERROR(LoadAttention(reader, index, &layer));
  KVCACHE_ASSIGN_OR_RETURN(layer.head_ones, PlacedVector::Make(backend(), index, p.v_dim, 1.0f));
  KVCACHE_ASSIGN_OR_RETURN(layer.state_lengths, VectorLengths::Make(backend(), index, hidden()));
  KVCACHE_ASSIGN_OR_RETURN(layer.laurel_left,
                           reader.Linear(prefix + "laurel_l", hidden(), kLaurelRank));
  KVCACHE_ASSIGN_OR_RETURN(layer.laurel_right,
                           reader.Linear(prefix + "laurel_r", kLaurelRank, hidden()));
  KVCACHE_ASSIGN_OR_RETURN(layer.altup, altup_.LoadLayer(reader, backend(), p, index));
  KVCACHE_ASSIGN_OR_RETURN(layer.input_scale,
                           reader.Vector(prefix + "altup_correct_scale.weight", hidden()));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, GatedFeedForward::Load(reader, prefix, hidden(), p.ffn[0]));
  const float deviations = gemma_.sparsity[static_cast<std::size_t>(index)];
  if (std::isfinite(deviations)) {
    const auto gates = static_cast<float>(p.ffn[0]);
    KVCACHE_ASSIGN_OR_RETURN(layer.gate_lengths, VectorLengths::Make(backend(), index, p.ffn[0]));
    KVCACHE_ASSIGN_OR_RETURN(layer.cutoff,
                             PlacedVector::Make(backend(), index, p.ffn[0],
                                                -deviations * std::sqrt(gates / (gates - 1.0f))));
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.input, InputGate::Load(reader, p, gemma_.input_size, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

// ---- The graph

void Gemma3n::RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) {
  const Pass::Scope scope(pass);
  inputs_.Compute(pass, tokens, x);
  const TensorView states = altup_.Take(pass);
  altup_.Spread(pass, x, states);
  for (int i = 0; i < params().layers; ++i) {
    pass.EnterLayer(i);
    RunLayer(pass, i, states);
  }
  pass.EnterLayer(Backend::kBeforeLayers);  // where the matrices are that Merge multiplies by
  altup_.Merge(pass, states, x);
}

void Gemma3n::RunLaurel(Pass& pass, const Layer& layer, const TensorView& n,
                        const TensorView& out) const {
  const Pass::Scope scope(pass);
  const TensorView small = pass.TakeHidden(kLaurelRank);
  pass.Linear(n, {{layer.laurel_left, small}});
  pass.Linear(small, {{layer.laurel_right, out}});
  pass.RmsNorm(out, layer.laurel_norm, out);
  pass.Add(out, n);
}

void Gemma3n::PutKeysAndValues(Pass& pass, int index, const TensorView& h) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const int kv_heads = params().kv_heads[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView k = pass.TakeHeads(params().k_dim, kv_heads);
  const TensorView v = pass.TakeHeads(params().k_dim, kv_heads);
  pass.Linear(h, {{*layer.k, k}, {*layer.v, v}});
  pass.RmsNorm(k, layer.k_norm, k);
  pass.RmsNorm(v, {layer.head_ones.view(), params().norm_epsilon}, v);
  pass.Rope(k, rope(index));
  pass.Put(index, k, v);
}

// Computes h = Wo attention(h).
void Gemma3n::Attend(Pass& pass, int index, const TensorView& h) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  if (layer.k) PutKeysAndValues(pass, index, h);
  const Pass::Scope scope(pass);
  const int heads = params().heads[static_cast<std::size_t>(index)];
  const TensorView q = pass.TakeHeads(params().k_dim, heads);
  const TensorView attended = pass.TakeHeads(params().k_dim, heads);
  pass.Linear(h, {{layer.q, q}});
  pass.RmsNorm(q, layer.q_norm, q);
  pass.Rope(q, rope(index));
  pass.Attend(gemma_.shared.SourceOf(index), q, {.scale = params().attention_scale}, attended);
  pass.Linear(attended, {{layer.o, h}});
}

// With c = gates - mean and c = direction · length, σ is length · √(n / (n - 1)).
void Gemma3n::Sparsify(Pass& pass, const Layer& layer, const TensorView& gates) const {
  const Pass::Scope scope(pass);
  const std::int64_t size = gates.dims[0];
  const TensorView direction = pass.TakeHidden(size);
  const TensorView length = pass.TakeHidden(1);
  if (pass.runs()) pass.Check(pass.backend().Center(gates, gates));
  layer.gate_lengths.Split(pass, gates, direction, length);
  if (pass.runs()) pass.Check(pass.backend().AddBias(direction, layer.cutoff.view()));
  pass.Activate(direction, Activation::kRelu);
  pass.Multiply(direction, length);
  pass.Copy(direction, gates);
}

void Gemma3n::RunFeedForward(Pass& pass, int index, const TensorView& h) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const GatedFeedForward& ffn = layer.ffn;
  const Pass::Scope scope(pass);
  const TensorView gate = pass.TakeHidden(params().ffn[0]);
  const TensorView up = pass.TakeHidden(params().ffn[0]);
  pass.Linear(h, {{ffn.gate, gate}, {ffn.up, up}});
  if (!layer.cutoff.empty()) Sparsify(pass, layer, gate);
  pass.Gate(gate, up, Activation::kGelu);
  pass.Linear(gate, {{ffn.down, h}});
}

void Gemma3n::AddInput(Pass& pass, int index, const TensorView& states) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView scaled = pass.TakeHidden(hidden());
  layer.state_lengths.Scale(pass, AltUp::StateOf(states, 0), layer.input_scale, scaled);
  layer.input.Run(pass, inputs_, index, scaled, scaled);
  for (int b = 1; b < AltUp::kStates; ++b) pass.Add(AltUp::StateOf(states, b), scaled);
}

void Gemma3n::RunLayer(Pass& pass, int index, const TensorView& states) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView predictions = altup_.Take(pass);
  const TensorView h = pass.TakeHidden(hidden());
  const TensorView y = pass.TakeHidden(hidden());
  const TensorView first = AltUp::StateOf(predictions, 0);
  altup_.Predict(pass, layer.altup, states, predictions);
  pass.RmsNorm(first, layer.attn_norm, h);
  RunLaurel(pass, layer, h, y);
  Attend(pass, index, h);
  pass.RmsNorm(h, layer.attn_post_norm, h);
  pass.Add(y, first);
  pass.Add(y, h);
  pass.Scale(y, 1.0f / std::sqrt(2.0f));
  pass.RmsNorm(y, layer.ffn_norm, h);
  RunFeedForward(pass, index, h);
  pass.RmsNorm(h, layer.ffn_post_norm, h);
  pass.Add(y, h);
  altup_.Correct(pass, layer.altup, predictions, y, states);
  AddInput(pass, index, states);
}

// ---- Keys

// Reads how many deviations above the mean each layer's gates begin to count.
Result<std::vector<float>> ReadSparsity(KeyReader& keys, int layers) {
  constexpr std::string_view kKey = "activation_sparsity_scale";
  std::vector<float> sparsity;
  if (!keys.Has(kKey)) {
    for (int i = 0; i < layers; ++i) {
      sparsity.push_back(i < kSparseLayers ? kSparsity : -HUGE_VALF);
    }
    return sparsity;
  }
  keys.Ignore(kKey);
  KVCACHE_ASSIGN_OR_RETURN(const GgufFloats values, keys.file().GetFloats(keys.Key(kKey)));
  if (values.size() != static_cast<std::size_t>(layers)) {
    return Corrupt(
        StrCat(keys.Key(kKey), " has ", values.size(), " values for ", layers, " layers"));
  }
  for (const double value : values) {
    if (std::isnan(value) || value > 100.0) {
      return Corrupt(StrCat(keys.Key(kKey), " has the value ", value, "; must be at most 100"));
    }
    sparsity.push_back(static_cast<float>(value));
  }
  return sparsity;
}

// Checks the settings that published models share.
Status CheckStates(KeyReader& keys) {
  KVCACHE_ASSIGN_OR_RETURN(const int states,
                           keys.IntOr("altup.num_inputs", 1 << 10, AltUp::kStates));
  KVCACHE_ASSIGN_OR_RETURN(const int active, keys.IntOrZero("altup.active_idx", 1 << 10));
  KVCACHE_ASSIGN_OR_RETURN(const bool scaled, keys.BoolOr("altup.correct_scale", true));
  if (states != AltUp::kStates) return keys.Unsupported("altup.num_inputs");
  if (active != 0) return keys.Unsupported("altup.active_idx");
  if (!scaled) return keys.Unsupported("altup.correct_scale");
  keys.Ignore("altup.lr_multiplier");  // of the training
  return Status::Ok();
}

Status CheckSizes(const KeyReader& keys, const LayerParams& params) {
  if (params.k_dim != params.v_dim) return keys.Unsupported("attention.value_length");
  if (std::ranges::any_of(params.ffn, [&](int ffn) { return ffn != params.ffn[0]; })) {
    return keys.Unsupported("feed_forward_length");
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeGemma3n(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_RETURN_IF_ERROR(CheckSizes(keys, params));
  KVCACHE_RETURN_IF_ERROR(CheckStates(keys));
  params.embedding_scale = std::sqrt(static_cast<float>(params.hidden_size));
  if (!keys.Has("attention.scale")) params.attention_scale = 1.0f;
  KVCACHE_ASSIGN_OR_RETURN(params.logit_soft_cap,
                           ReadSoftCap(keys, "final_logit_softcapping", 30.0));
  Gemma3nParams gemma;
  constexpr auto kHalves = RopeParams::Pairing::kHalves;
  KVCACHE_ASSIGN_OR_RETURN(gemma.spans, ReadAttentionSpans(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(gemma.rope, ReadRope(keys, params, kHalves, source.weights));
  KVCACHE_ASSIGN_OR_RETURN(gemma.window_rope, ReadWindowRope(keys, params.k_dim, kHalves));
  KVCACHE_ASSIGN_OR_RETURN(gemma.shared, SharedKv::Read(keys, params, gemma.spans,
                                                        std::max(0, params.layers - kOwnKvLayers)));
  KVCACHE_ASSIGN_OR_RETURN(gemma.sparsity, ReadSparsity(keys, params.layers));
  KVCACHE_ASSIGN_OR_RETURN(gemma.input_size, keys.Int("embedding_length_per_layer_input", 1 << 16));
  IgnoreVisionAndAudio(keys, source.weights);
  return source.Make<Gemma3n>(std::move(params), std::move(gemma));
}

}  // namespace kvcache
