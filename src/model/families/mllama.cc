// The mllama architecture, text part: Llama 3.2 Vision. llama's layers, and between them layers
// with cross-attention over an image:
//
//   x += tanh(a) · Wo attention(norm(Wq n), norm(Wk s), Wv s)      n = rms(x), s the image's states
//   x += tanh(m) · ffn(rms(x))
//
// Such a layer adds nothing to tokens before their sequence's image. The caller provides the output
// of the vision encoder (EncodeStates); its tensors and keys in a file are ignored here.
//
// Source: Meta's published inference code (llama_models/llama3/multimodal) and Hugging Face's
// modeling_mllama; names as in Ollama's files, which use this architecture name.
#include <algorithm>
#include <cmath>
#include <new>
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
#include "model/graph/attention/self_attention.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

// Layer types of the wrapper cache.
constexpr int kSelfCache = 0;
constexpr int kCrossCache = 1;

struct MllamaParams {
  std::vector<bool> is_cross;  // [layers]
  int image_tokens = 0;        // of the largest image; 0: unknown
};

class Mllama final : public Decoder {
 public:
  Mllama(Backend& backend, std::string_view name, LayerParams params, MllamaParams config,
         RopeTable rope)
      : Decoder(backend, name, std::move(params)),
        config_(std::move(config)),
        rope_(std::move(rope)) {}

  std::unique_ptr<Cache> MakeCache() override;
  Status Reserve(int max_batch) override;
  Status EncodeStates(const TensorView& states, SequenceId sequence, Cache& cache) override;

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return rope_.params(); }
  std::vector<LayerMemory> Memory() const override;

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;
    SelfAttention attention;  // a cross-attention layer uses its weights and norms alone
    float attn_gate = 1.0f, ffn_gate = 1.0f;
    GatedFeedForward ffn;
  };

  bool IsCross(int layer) const { return config_.is_cross[static_cast<std::size_t>(layer)]; }
  KvShape kv(int layer) const {
    return {params().kv_heads[static_cast<std::size_t>(layer)], params().k_dim, params().v_dim};
  }
  Status LoadCross(WeightReader& reader, int index, Layer* layer);
  void RunSelf(Pass& pass, int index, const Layer& layer, const TensorView& x);
  void RunCross(Pass& pass, int index, const Layer& layer, const TensorView& x);
  Status ReserveStates(std::int64_t tokens);
  void PutStates(Pass& pass, const TensorView& states, EncoderCache* encoder);

  MllamaParams config_;
  RopeTable rope_;
  std::vector<Layer> layers_;
  std::vector<float> has_image_;  // [max_batch]: 1 or 0
  ActivationBuffer states_activations_;
  std::int64_t states_capacity_ = 0;  // tokens that states_activations_ holds
  std::vector<Position> states_positions_;
};

// Returns a gate's hyperbolic tangent.
Result<float> LoadGate(WeightReader& reader, const std::string& name) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> values, reader.Values(name, 1, 1));
  return static_cast<float>(std::tanh(static_cast<double>(values[0])));
}

Status Mllama::LoadCross(WeightReader& reader, int index, Layer* layer) {
  const LayerParams& p = params();
  const std::string prefix = LayerPrefix(index) + "cross_attn_";
  KVCACHE_ASSIGN_OR_RETURN(layer->attention.weights,
                           AttentionWeights::Load(reader, p, index,
                                                  {prefix + "q_proj", prefix + "k_proj",
                                                   prefix + "v_proj", prefix + "o_proj"}));
  KVCACHE_ASSIGN_OR_RETURN(layer->attention.q_norm,
                           reader.RmsNorm(prefix + "q_norm", p.k_dim, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer->attention.k_norm,
                           reader.RmsNorm(prefix + "k_norm", p.k_dim, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer->attn_gate, LoadGate(reader, prefix + "attn_gate"));
  KVCACHE_ASSIGN_OR_RETURN(layer->ffn_gate, LoadGate(reader, prefix + "mlp_gate"));
  return Status::Ok();
}

Status Mllama::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.hidden_size, p.norm_epsilon));
  if (IsCross(index)) {
    KVCACHE_RETURN_IF_ERROR(LoadCross(reader, index, &layer));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(layer.attention, SelfAttention::Load(reader, p, index));
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.hidden_size, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn, GatedFeedForward::Load(reader, p, index));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

std::unique_ptr<Cache> Mllama::MakeCache() {
  WrapperOptions options;
  options.caches.push_back(
      MakeCausalCache({.shift_keys = ShiftKeys(), .keys_identity = KeysIdentity()}));
  options.caches.push_back(
      MakeEncoderCache({.max_tokens = config_.image_tokens, .keys_identity = KeysIdentity()}));
  for (const bool cross : config_.is_cross)
    options.cache_of_layer.push_back(cross ? kCrossCache : kSelfCache);
  return MakeWrapperCache(std::move(options));
}

std::vector<LayerMemory> Mllama::Memory() const {
  std::vector<LayerMemory> layers;
  layers.reserve(static_cast<std::size_t>(params().layers));
  for (int i = 0; i < params().layers; ++i) {
    layers.push_back({.layer = i,
                      .kind = IsCross(i) ? LayerMemory::Kind::kCross : LayerMemory::Kind::kFull,
                      .kv = kv(i)});
  }
  return layers;
}

Status Mllama::Reserve(int max_batch) {
  try {
    has_image_.resize(std::max(has_image_.size(), static_cast<std::size_t>(max_batch)));
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, StrCat("no memory for a batch of ", max_batch, " tokens")};
  }
  return Decoder::Reserve(max_batch);
}

void Mllama::RunSelf(Pass& pass, int index, const Layer& layer, const TensorView& x) {
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.attn_norm, h);
  layer.attention.Run(pass, index, h,
                      {.rope = rope_.params(), .attention = {.scale = params().attention_scale}},
                      h);
  pass.Add(x, h);

  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, h, h);
  pass.Add(x, h);
}

void Mllama::RunCross(Pass& pass, int index, const Layer& layer, const TensorView& x) {
  const AttentionWeights& w = layer.attention.weights;
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  const std::span<float> has_image =
      std::span(has_image_).first(pass.measuring() ? 0 : static_cast<std::size_t>(pass.batch()));
  {
    const Pass::Scope attention(pass);
    const TensorView q = pass.TakeHeads(w.k_dim, w.heads);
    const TensorView att = pass.TakeHeads(w.v_dim, w.heads);
    pass.RmsNorm(x, layer.attn_norm, h);
    pass.Linear(h, {{w.q, q}});
    pass.RmsNorm(q, *layer.attention.q_norm, q);
    pass.CrossAttention(index, kCrossCache, kv(index), q, {.scale = params().attention_scale}, att);
    // Without an image attention gives zeros, but the feed-forward part would still add a value.
    // The mask removes both for tokens whose sequence has no image.
    pass.EncoderOutputMask(has_image);
    pass.Linear(att, {{w.o, h}});
    pass.Scale(h, layer.attn_gate);
    pass.ScaleTokens(h, has_image);
    pass.Add(x, h);
  }
  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, h, h);
  pass.Scale(h, layer.ffn_gate);
  pass.ScaleTokens(h, has_image);
  pass.Add(x, h);
}

void Mllama::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  if (IsCross(index)) {
    RunCross(pass, index, layer, x);
  } else {
    RunSelf(pass, index, layer, x);
  }
}

void Mllama::PutStates(Pass& pass, const TensorView& states, EncoderCache* encoder) {
  for (int i = 0; i < params().layers; ++i) {
    if (!IsCross(i)) continue;
    const Layer& layer = layers_[static_cast<std::size_t>(i)];
    const AttentionWeights& w = layer.attention.weights;
    const Pass::Scope scope(pass);
    const TensorView k = pass.TakeHeads(w.k_dim, w.kv_heads);
    const TensorView v = pass.TakeHeads(w.v_dim, w.kv_heads);
    pass.Linear(states, {{w.k, k}, {w.v, v}});
    pass.RmsNorm(k, *layer.attention.k_norm, k);
    if (!pass.runs()) continue;
    encoder->SetLayer(i);
    pass.Check(encoder->Put(k, v));
  }
}

Status Mllama::ReserveStates(std::int64_t tokens) {
  if (tokens <= states_capacity_) return Status::Ok();
  Pass measure = Pass::Measuring(tokens);
  PutStates(measure, {}, nullptr);
  states_capacity_ = 0;
  KVCACHE_RETURN_IF_ERROR(states_activations_.Reserve(backend(), measure.peak_values()));
  try {
    states_positions_.resize(static_cast<std::size_t>(tokens));
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, StrCat("no memory for an image of ", tokens, " tokens")};
  }
  states_capacity_ = tokens;
  return Status::Ok();
}

Status Mllama::EncodeStates(const TensorView& states, SequenceId sequence, Cache& cache) {
  EncoderCache* const encoder = cache.Encoder();
  if (encoder == nullptr) {
    return InvalidArgument(
        "the cache has no encoder cache for an image; create it with Model::MakeCache");
  }
  const TensorView dense =
      TensorView::Dense(states.data, DType::kF32, params().hidden_size, states.dims[1]);
  if (states.dims != dense.dims || states.stride_bytes != dense.stride_bytes ||
      states.dtype != DType::kF32 || states.dims[1] < 1) {
    return InvalidArgument(StrCat("image states are [", states.dims[0], ", ", states.dims[1],
                                  "]; must be dense f32 [", params().hidden_size, ", at least 1]"));
  }
  KVCACHE_RETURN_IF_ERROR(encoder->SetSequence(sequence));
  KVCACHE_RETURN_IF_ERROR(ReserveStates(states.dims[1]));
  const auto tokens = static_cast<std::size_t>(states.dims[1]);
  Pass pass(backend(), states_activations_, nullptr, std::span(states_positions_).first(tokens),
            interrupt());
  PutStates(pass, states, encoder);
  return pass.status();
}

// Returns the largest number of tokens that the vision encoder makes of an image; 0 if keys are
// missing.
Result<int> ReadImageTokens(KeyReader& keys) {
  KVCACHE_ASSIGN_OR_RETURN(const int size, keys.IntOrZero("vision.image_size", 1 << 14));
  KVCACHE_ASSIGN_OR_RETURN(const int patch, keys.IntOrZero("vision.patch_size", 1 << 14));
  KVCACHE_ASSIGN_OR_RETURN(const int tiles, keys.IntOrZero("vision.max_num_tiles", 64));
  if (size == 0 || patch == 0 || tiles == 0) return 0;
  const std::int64_t side = size / patch;
  const std::int64_t tokens = (side * side + 1) * tiles;
  if (tokens <= (1 << 20)) return static_cast<int>(tokens);
  return Corrupt(StrCat(keys.Key("vision.image_size"), " is ", size, ": ", tokens, " tokens"));
}

Result<MllamaParams> ReadConfig(KeyReader& keys, const LayerParams& params) {
  constexpr std::string_view kLayers = "attention.cross_attention_layers";
  MllamaParams config;
  config.is_cross.assign(static_cast<std::size_t>(params.layers), false);
  KVCACHE_ASSIGN_OR_RETURN(const GgufInts layers, keys.Ints(kLayers));
  for (const std::int64_t layer : layers) {
    if (layer < 0 || layer >= params.layers) {
      return Corrupt(StrCat(keys.Key(kLayers), " has layer ", layer, " of ", params.layers));
    }
    config.is_cross[static_cast<std::size_t>(layer)] = true;
  }
  KVCACHE_ASSIGN_OR_RETURN(config.image_tokens, ReadImageTokens(keys));
  return config;
}

}  // namespace

Result<std::unique_ptr<Model>> LoadMllama(const GgufFile& file, std::string_view name,
                                          Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(MllamaParams config, ReadConfig(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kInterleaved, weights));
  IgnoreVisionAndAudio(keys, weights);
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  // The embedding has more rows than the output: the image token can be read but not generated.
  if (const GgufTensor* const output = file.FindTensor("output.weight"); output != nullptr) {
    params.embedding_rows = params.vocabulary;
    params.vocabulary =
        static_cast<int>(std::min<std::int64_t>(output->dims[1], params.embedding_rows));
  }
  return LoadDecoder(std::make_unique<Mllama>(backend, name, std::move(params), std::move(config),
                                              std::move(rope)),
                     weights, file);
}

}  // namespace kvcache
