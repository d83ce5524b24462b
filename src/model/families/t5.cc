// The t5 architecture (T5, Flan-T5). An encoder reads a whole text; a decoder generates token by
// token with cross-attention over the encoder's output. There is no rotation: scores get a bias by
// distance (position_buckets.h) and are not scaled. The feed-forward part uses ReLU, or a GELU gate
// if the file has one.
//
//   encoder  x += attention(rms(x)), bidirectional;  x += ffn(rms(x));  then rms(x)
//   decoder  x += attention(rms(x));
//            x += attention(rms(x)) over the encoder's output;
//            x += ffn(rms(x))
//
// If the embedding is also the output matrix, logits are divided by √hidden_size.
//
// The middle of a text cannot be removed, so generation ends when the context is full. Unrotated
// keys could move, but the encoder's output belongs to the first token.
//
// Source: Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text
// transformer" (2020); Hugging Face's modeling_t5; names as llama.cpp writes them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "kvcache/causal_cache.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/wrapper_cache.h"
#include "model/families/architectures.h"
#include "model/graph/attention/position_buckets.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/attention/text_attention.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"

namespace kvcache {
namespace {

// Layer types of the wrapper cache.
constexpr int kDecoderCache = 0;
constexpr int kEncoderCache = 1;

struct T5Params {
  int encoder_layers = 0;
  int buckets = 0;
};

// Computes down(gelu(gate h) × up h) with a gate, else down(relu(up h)).
struct T5FeedForward {
  Norm norm;
  std::optional<Projection> gate;
  Projection up, down;
};

struct T5Attention {
  Norm norm;
  SelfAttention block;  // the matrices alone
};

class T5 final : public Decoder {
 public:
  T5(Backend& backend, std::string_view name, LayerParams params, const T5Params& config)
      : Decoder(backend, name, std::move(params)), config_(config) {}

  std::unique_ptr<Cache> MakeCache() override;
  Status ReserveText(int tokens) override { return ReserveEncoder(tokens); }
  std::int64_t ActivationBytes() const override {
    return Decoder::ActivationBytes() + encoder_activations_.bytes() + text_attention_.bytes();
  }
  Status Encode(std::span<const std::int32_t> tokens, SequenceId sequence, Cache& cache) override;

 protected:
  Status LoadModelTensors(WeightReader& reader) override;  // the encoder's
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return {}; }
  bool can_have_adapters() const override { return false; }
  std::vector<LayerMemory> Memory() const override;

 private:
  struct Layer {
    T5Attention self;
    std::optional<T5Attention> cross;  // decoder layers only
    T5FeedForward ffn;
  };

  KvShape kv() const { return {params().kv_heads[0], params().k_dim, params().v_dim}; }
  Result<T5Attention> LoadAttention(WeightReader& reader, const std::string& prefix);
  Result<T5FeedForward> LoadFeedForward(WeightReader& reader, const std::string& prefix);
  Result<BucketBias> LoadBias(WeightReader& reader, const std::string& name,
                              AttentionDirection direction);
  Status ReserveEncoder(std::int64_t tokens);
  void RunEncoder(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x);
  void PutOutput(Pass& pass, const TensorView& output, EncoderCache& encoder, Cache& cache);
  void RunFeedForward(Pass& pass, const T5FeedForward& ffn, const TensorView& x,
                      const TensorView& h);

  T5Params config_;
  std::vector<Layer> encoder_, layers_;
  Norm encoder_norm_;
  BucketBias encoder_bias_, bias_;
  TextAttention text_attention_;
  ActivationBuffer encoder_activations_;
  std::int64_t encoder_capacity_ = 0;  // tokens that encoder_activations_ holds
};

Result<T5Attention> T5::LoadAttention(WeightReader& reader, const std::string& prefix) {
  const LayerParams& p = params();
  T5Attention attention;
  KVCACHE_ASSIGN_OR_RETURN(attention.norm,
                           reader.RmsNorm(prefix + "_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(
      attention.block.weights,
      AttentionWeights::Load(reader, p, 0,
                             {prefix + "_q", prefix + "_k", prefix + "_v", prefix + "_o"}));
  return attention;
}

Result<T5FeedForward> T5::LoadFeedForward(WeightReader& reader, const std::string& prefix) {
  const LayerParams& p = params();
  const std::int64_t inner = p.ffn[0];
  T5FeedForward ffn;
  KVCACHE_ASSIGN_OR_RETURN(ffn.norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.hidden_size, p.norm_epsilon));
  if (reader.Has(prefix + "ffn_gate.weight")) {
    KVCACHE_ASSIGN_OR_RETURN(ffn.gate, reader.Linear(prefix + "ffn_gate", p.hidden_size, inner));
  }
  KVCACHE_ASSIGN_OR_RETURN(ffn.up, reader.Linear(prefix + "ffn_up", p.hidden_size, inner));
  KVCACHE_ASSIGN_OR_RETURN(ffn.down, reader.Linear(prefix + "ffn_down", inner, p.hidden_size));
  return ffn;
}

Result<BucketBias> T5::LoadBias(WeightReader& reader, const std::string& name,
                                AttentionDirection direction) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> values,
                           reader.Values(name, params().heads[0], config_.buckets));
  return BucketBias(values, params().heads[0], config_.buckets, direction);
}

Status T5::LoadModelTensors(WeightReader& reader) {
  const LayerParams& p = params();
  KVCACHE_ASSIGN_OR_RETURN(encoder_bias_, LoadBias(reader, "enc.blk.0.attn_rel_b.weight",
                                                   AttentionDirection::kBidirectional));
  for (int i = 0; i < config_.encoder_layers; ++i) {
    const std::string prefix = StrCat("enc.blk.", i, ".");
    Layer layer;
    KVCACHE_ASSIGN_OR_RETURN(layer.self, LoadAttention(reader, prefix + "attn"));
    KVCACHE_ASSIGN_OR_RETURN(layer.ffn, LoadFeedForward(reader, prefix));
    encoder_.push_back(std::move(layer));
  }
  KVCACHE_ASSIGN_OR_RETURN(encoder_norm_,
                           reader.RmsNorm("enc.output_norm", p.hidden_size, p.norm_epsilon));
  return Status::Ok();
}

Status T5::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = StrCat("dec.blk.", index, ".");
  if (index == 0) {
    KVCACHE_ASSIGN_OR_RETURN(
        bias_, LoadBias(reader, prefix + "attn_rel_b.weight", AttentionDirection::kCausal));
  }
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.self, LoadAttention(reader, prefix + "attn"));
  KVCACHE_ASSIGN_OR_RETURN(layer.cross, LoadAttention(reader, prefix + "cross_attn"));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, LoadFeedForward(reader, prefix));
  reader.Ignore(prefix + "cross_attn_rel_b.weight");  // some files have it; it has no effect
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

std::unique_ptr<Cache> T5::MakeCache() {
  WrapperOptions options;
  options.caches.push_back(MakeCausalCache({.keys_identity = KeysIdentity()}));
  options.caches.push_back(MakeEncoderCache({.keys_identity = KeysIdentity()}));
  options.cache_of_layer.assign(static_cast<std::size_t>(params().layers), kDecoderCache);
  return MakeWrapperCache(std::move(options));
}

std::vector<LayerMemory> T5::Memory() const {
  std::vector<LayerMemory> layers = Decoder::Memory();
  for (int i = 0; i < params().layers; ++i) {
    layers.push_back({.layer = i, .kind = LayerMemory::Kind::kCross, .kv = kv()});
  }
  return layers;
}

void T5::RunFeedForward(Pass& pass, const T5FeedForward& ffn, const TensorView& x,
                        const TensorView& h) {
  const Pass::Scope scope(pass);
  const TensorView inner = pass.TakeHidden(ffn.up.weight->outputs());
  const TensorView gated = pass.TakeHidden(ffn.up.weight->outputs());
  pass.RmsNorm(x, ffn.norm, h);
  if (ffn.gate.has_value()) {
    pass.Linear(h, {{*ffn.gate, gated}, {ffn.up, inner}});
    pass.Gate(gated, inner, Activation::kGelu);
  } else {
    pass.Linear(h, {{ffn.up, gated}});
    pass.Activate(gated, Activation::kRelu);
  }
  pass.Linear(gated, {{ffn.down, h}});
  pass.Add(x, h);
}

void T5::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.self.norm, h);
  layer.self.block.Run(pass, index, h, {.attention = {.bias = bias_.bias()}}, h);
  pass.Add(x, h);
  {
    const AttentionWeights& w = layer.cross->block.weights;
    const Pass::Scope attention(pass);
    const TensorView q = pass.TakeHeads(w.k_dim, w.heads);
    const TensorView att = pass.TakeHeads(w.v_dim, w.heads);
    pass.RmsNorm(x, layer.cross->norm, h);
    pass.Linear(h, {{w.q, q}});
    pass.CrossAttention(index, kEncoderCache, kv(), q, {}, att);
    pass.Linear(att, {{w.o, h}});
    pass.Add(x, h);
  }
  RunFeedForward(pass, layer.ffn, x, h);
}

void T5::RunEncoder(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) {
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.BeginAt(Backend::kBeforeLayers);
  pass.Embed(token_table(), tokens, x);
  for (const Layer& layer : encoder_) {
    {
      const AttentionWeights& w = layer.self.block.weights;
      const Pass::Scope attention(pass);
      const auto [q, k, v, att] = TakeAttention(pass, w);
      pass.RmsNorm(x, layer.self.norm, h);
      pass.Linear(h, {{w.q, q}, {w.k, k}, {w.v, v}});
      text_attention_.Run(pass, 0, q, k, v, {.bias = encoder_bias_.bias()}, att);
      pass.Linear(att, {{w.o, h}});
      pass.Add(x, h);
    }
    RunFeedForward(pass, layer.ffn, x, h);
  }
  pass.RmsNorm(x, encoder_norm_, x);
}

// Puts each decoder layer's keys and values of the encoder's output into the cache.
void T5::PutOutput(Pass& pass, const TensorView& output, EncoderCache& encoder, Cache& cache) {
  for (int i = 0; i < params().layers; ++i) {
    pass.EnterLayer(i);
    const AttentionWeights& w = layers_[static_cast<std::size_t>(i)].cross->block.weights;
    const Pass::Scope scope(pass);
    const TensorView k = pass.TakeHeads(w.k_dim, w.kv_heads);
    const TensorView v = pass.TakeHeads(w.v_dim, w.kv_heads);
    pass.Linear(output, {{w.k, k}, {w.v, v}});
    if (!pass.runs()) continue;
    encoder.SetLayer(i);
    pass.Check(encoder.Put(k, v));
  }
  cache.SetLayer(0);
}

Status T5::ReserveEncoder(std::int64_t tokens) {
  if (tokens <= encoder_capacity_) return Status::Ok();
  Pass measure = Pass::Measuring(tokens);
  const TensorView x = measure.TakeHidden(params().hidden_size);
  RunEncoder(measure, {}, x);
  {
    const Pass::Scope scope(measure);
    measure.TakeHeads(params().k_dim, params().kv_heads[0]);
    measure.TakeHeads(params().v_dim, params().kv_heads[0]);
  }
  encoder_capacity_ = 0;
  KVCACHE_RETURN_IF_ERROR(encoder_activations_.Reserve(backend(), measure.peak_values()));
  KVCACHE_RETURN_IF_ERROR(text_attention_.Reserve(backend(), kv(), tokens, 1));
  encoder_capacity_ = tokens;
  return Status::Ok();
}

Status T5::Encode(std::span<const std::int32_t> tokens, SequenceId sequence, Cache& cache) {
  EncoderCache* const encoder = cache.Encoder();
  if (encoder == nullptr) {
    return InvalidArgument("the cache has no encoder cache; create it with Model::MakeCache");
  }
  if (tokens.empty()) return InvalidArgument("the text to encode has no tokens");
  // The encoder's pass uses no cache: its attention has memory of its own (text_attention.h). Only
  // the decoder layers' keys and values of the result go into the cache.
  KVCACHE_RETURN_IF_ERROR(encoder->SetSequence(sequence));
  KVCACHE_RETURN_IF_ERROR(ReserveEncoder(static_cast<std::int64_t>(tokens.size())));
  const std::int32_t lengths[] = {static_cast<std::int32_t>(tokens.size())};
  text_attention_.SetTexts(lengths);
  Pass pass(backend(), encoder_activations_, nullptr, text_attention_.positions(), interrupt());
  const TensorView x = pass.TakeHidden(params().hidden_size);
  RunEncoder(pass, tokens, x);
  PutOutput(pass, x, *encoder, cache);
  return pass.status();
}

// Reads t5's settings. Decoder and encoder have the same sizes except for the number of layers.
Result<T5Params> ReadConfig(KeyReader& keys, LayerParams* params) {
  constexpr int kMinBuckets = 4;
  constexpr int kMaxBuckets = 128;  // far above the 32 of all models
  T5Params config;
  config.encoder_layers = params->layers;
  KVCACHE_ASSIGN_OR_RETURN(params->layers, keys.IntOr("decoder_block_count", 4096, params->layers));
  const auto layers = static_cast<std::size_t>(params->layers);
  for (std::vector<int>* const each : {&params->heads, &params->kv_heads, &params->ffn}) {
    if (std::ranges::adjacent_find(*each, std::not_equal_to<>()) != each->end()) {
      return Unsupported("t5 layers differ in heads or feed-forward size; all must be equal");
    }
    each->assign(layers, each->front());
  }
  KVCACHE_ASSIGN_OR_RETURN(config.buckets, keys.Int("attention.relative_buckets_count", 1 << 10));
  if (config.buckets < kMinBuckets || config.buckets > kMaxBuckets) {
    return keys.Unsupported("attention.relative_buckets_count");
  }
  KVCACHE_ASSIGN_OR_RETURN(params->decoder_start,
                           keys.IntOrZero("decoder_start_token_id", params->vocabulary - 1));
  return config;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeT5(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  params.output_norm_name = "dec.output_norm";
  KVCACHE_ASSIGN_OR_RETURN(const T5Params config, ReadConfig(keys, &params));
  params.attention_scale = 1.0f;
  if (!source.weights.Has("output.weight")) {
    params.logit_scale =
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(params.hidden_size)));
  }
  return source.Make<T5>(std::move(params), config);
}

}  // namespace kvcache
