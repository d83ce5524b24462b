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
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/arithmetic/doubles.h"
#include "base/errors.h"
#include "base/strings.h"
#include "kvcache/causal_cache.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/wrapper_cache.h"
#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

// Layer types of the wrapper cache.
constexpr int kSelfCache = 0;
constexpr int kCrossCache = 1;

struct MllamaParams {
  std::vector<bool> is_cross;  // [layers]
  int image_tokens = 0;        // of the largest image; 0: unknown
};

class Mllama final : public BlockDecoder {
 public:
  Mllama(Backend& backend, std::string_view name, LayerParams params, BlockParams blocks,
         MllamaParams config)
      : BlockDecoder(backend, name, std::move(params), std::move(blocks)),
        config_(std::move(config)) {}

  std::unique_ptr<Cache> MakeCache() override;
  Status Reserve(int max_batch) override;
  Status EncodeStates(const TensorView& states, SequenceId sequence, Cache& cache) override;

 protected:
  Status LoadMixer(WeightReader& reader, int index, SelfAttention* attention) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  std::vector<LayerMemory> Memory() const override;

 private:
  // Factors on a cross-attention layer's results.
  struct Gates {
    float attention = 1.0f, ffn = 1.0f;
  };

  bool IsCross(int layer) const { return config_.is_cross[static_cast<std::size_t>(layer)]; }
  KvShape kv(int layer) const {
    return {params().kv_heads[static_cast<std::size_t>(layer)], params().k_dim, params().v_dim};
  }
  Status ReserveStates(std::int64_t tokens);
  void PutStates(Pass& pass, const float* states, EncoderCache* encoder);

  MllamaParams config_;
  std::map<int, Gates> gates_;    // of cross-attention layers
  std::vector<float> has_image_;  // [max_batch]: 1 or 0
  ActivationBuffer states_activations_;
  std::int64_t states_capacity_ = 0;  // tokens that states_activations_ holds
  std::vector<Position> states_positions_;
};

// Returns a gate's hyperbolic tangent.
Result<float> LoadGate(WeightReader& reader, const std::string& name) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<float> values, reader.Values(name, 1, 1));
  return static_cast<float>(arithmetic::Tanh(static_cast<double>(values[0])));
}

// A cross-attention layer uses the weights and norms of its attention alone.
Status Mllama::LoadMixer(WeightReader& reader, int index, SelfAttention* attention) {
  if (!IsCross(index)) return BlockDecoder::LoadMixer(reader, index, attention);
  const LayerParams& p = params();
  const std::string prefix = LayerPrefix(index) + "cross_attn_";
  KVCACHE_ASSIGN_OR_RETURN(attention->weights,
                           AttentionWeights::Load(reader, p, index,
                                                  {prefix + "q_proj", prefix + "k_proj",
                                                   prefix + "v_proj", prefix + "o_proj"}));
  for (const char* name : {"k_proj.weight", "v_proj.weight"}) {
    reader.ForgetSite(prefix + name);  // an image's keys and values are the same for all requests
  }
  KVCACHE_ASSIGN_OR_RETURN(attention->q_norm,
                           reader.RmsNorm(prefix + "q_norm", p.k_dim, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(attention->k_norm,
                           reader.RmsNorm(prefix + "k_norm", p.k_dim, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(gates_[index].attention, LoadGate(reader, prefix + "attn_gate"));
  KVCACHE_ASSIGN_OR_RETURN(gates_[index].ffn, LoadGate(reader, prefix + "mlp_gate"));
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
  std::vector<LayerMemory> layers = BlockDecoder::Memory();
  for (LayerMemory& layer : layers) {
    if (IsCross(layer.layer)) layer.kind = LayerMemory::Kind::kCross;
  }
  return layers;
}

Status Mllama::Reserve(int max_batch) {
  KVCACHE_RETURN_IF_ERROR(
      Guarded([&] { return StrCat("no memory for a batch of ", max_batch, " tokens"); },
              [&] {
                has_image_.resize(std::max(has_image_.size(), static_cast<std::size_t>(max_batch)));
              }));
  return BlockDecoder::Reserve(max_batch);
}

void Mllama::RunLayer(Pass& pass, int index, const TensorView& x) {
  if (!IsCross(index)) return BlockDecoder::RunLayer(pass, index, x);
  const SelfAttention& block = layer(index).attention;
  const AttentionWeights& w = block.weights;
  const Gates& gates = gates_.at(index);
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  const std::span<float> has_image =
      std::span(has_image_).first(pass.measuring() ? 0 : static_cast<std::size_t>(pass.batch()));
  {
    const Pass::Scope attention(pass);
    const TensorView q = pass.TakeHeads(w.k_dim, w.heads);
    const TensorView att = pass.TakeHeads(w.v_dim, w.heads);
    pass.RmsNorm(x, *layer(index).attn_norm, h);
    pass.Linear(h, {{w.q, q}});
    pass.RmsNorm(q, *block.q_norm, q);
    pass.CrossAttention(index, kCrossCache, kv(index), q, {.scale = params().attention_scale}, att);
    // Without an image attention gives zeros, but the feed-forward part would still add a value.
    // The mask removes both for tokens whose sequence has no image.
    pass.EncoderOutputMask(has_image);
    pass.Linear(att, {{w.o, h}});
    pass.Scale(h, gates.attention);
    pass.ScaleTokens(h, has_image);
    pass.Add(x, h);
  }
  pass.RmsNorm(x, *layer(index).ffn_norm, h);
  RunFeedForward(pass, index, h);
  pass.Scale(h, gates.ffn);
  pass.ScaleTokens(h, has_image);
  pass.Add(x, h);
}

void Mllama::PutStates(Pass& pass, const float* states, EncoderCache* encoder) {
  const Pass::Scope whole(pass);
  const TensorView x = pass.TakeHidden(params().hidden_size);
  pass.BeginAt(Backend::kBeforeLayers);
  pass.CopyFromHost(states, x);
  for (int i = 0; i < params().layers; ++i) {
    if (!IsCross(i)) continue;
    pass.EnterLayer(i);
    const SelfAttention& block = layer(i).attention;
    const AttentionWeights& w = block.weights;
    const Pass::Scope scope(pass);
    const TensorView k = pass.TakeHeads(w.k_dim, w.kv_heads);
    const TensorView v = pass.TakeHeads(w.v_dim, w.kv_heads);
    pass.Linear(x, {{w.k, k}, {w.v, v}});
    pass.RmsNorm(k, *block.k_norm, k);
    if (!pass.runs()) continue;
    encoder->SetLayer(i);
    pass.Check(encoder->Put(k, v));
  }
}

Status Mllama::ReserveStates(std::int64_t tokens) {
  if (tokens <= states_capacity_) return Status::Ok();
  Pass measure = Pass::Measuring(tokens);
  PutStates(measure, nullptr, nullptr);
  states_capacity_ = 0;
  KVCACHE_RETURN_IF_ERROR(states_activations_.Reserve(backend(), measure.peak_values()));
  KVCACHE_RETURN_IF_ERROR(
      Guarded([&] { return StrCat("no memory for an image of ", tokens, " tokens"); },
              [&] { states_positions_.resize(static_cast<std::size_t>(tokens)); }));
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
  PutStates(pass, states.as<const float>(), encoder);
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

Result<std::unique_ptr<Decoder>> MakeMllama(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(MllamaParams config, ReadConfig(keys, params));
  BlockParams blocks;
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  IgnoreVisionAndAudio(keys, source.weights);
  // The embedding has more rows than the output: the image token can be read but not generated.
  if (const auto* const output = keys.file().FindTensor("output.weight"); output != nullptr) {
    params.embedding_rows = params.vocabulary;
    params.vocabulary =
        static_cast<int>(std::min<std::int64_t>(output->dims[1], params.embedding_rows));
  }
  return source.Make<Mllama>(std::move(params), std::move(blocks), std::move(config));
}

}  // namespace kvcache
