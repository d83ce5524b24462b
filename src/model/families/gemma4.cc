// The gemma4 architecture: gemma3's layers with these differences.
//
//   - Layers with a window have their own head size and rotation.
//   - Values are normed without a weight, and scores are not scaled.
//   - A layer without a V matrix uses the K matrix's product as values, before norm and rotation.
//   - The last layers (attention.shared_kv_layers) have queries alone. They attend over the keys
//     and values of the last earlier layer of the same kind (with or without a window).
//   - With embedding_length_per_layer_input, each layer gets an input vector of P values, computed
//     from the token and from the first hidden state. The layer gates it at its end.
//   - A layer's result may be scaled (layer_output_scale).
//   - A layer may have experts beside its gated network (gemma4_layer.h).
//
//   per layer:  e = √P · table[token],  p = rms(Wmodel x / √hidden_size) × weight
//               input = (p + e) / √2
//               x += rms(Wproj (gelu(Wgate x) × input)) × weight
//
// Source: Google's published configuration and code in Hugging Face's modeling_gemma4.py; keys and
// tensors as llama.cpp writes and reads them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/families/gemma4_assistant.h"
#include "model/families/gemma4_layer.h"
#include "model/graph/decoder.h"

namespace kvcache {
namespace {

struct Gemma4Params {
  Gemma4Kinds kinds;
  ExpertParams experts;
  int kv_layers = 0;   // layers with their own keys and values: the first ones
  int input_size = 0;  // P, values of a layer's input vector; 0: layers have none
};

class Gemma4 final : public Decoder {
 public:
  Gemma4(Backend& backend, std::string_view name, LayerParams params, Gemma4Params gemma)
      : Decoder(backend, name, std::move(params)),
        gemma_(std::move(gemma)),
        ones_(static_cast<std::size_t>(std::max(this->params().v_dim, gemma_.kinds.window_dim)),
              1.0f) {}

  Status LoadHead(const GgufFile& file) override;
  bool has_head() const override { return assistant_ != nullptr; }
  bool head_reads_cache() const override { return assistant_ != nullptr; }
  Status BeginDrafts(Cache& cache, std::span<const SequenceLength> rows) override;
  Status Draft(std::span<const std::int32_t> tokens, std::span<const Position> positions,
               const float* states, Cache& cache, float* logits, float* next_states) override;
  Status Reserve(int max_batch) override;
  std::int64_t ActivationBytes() const override {
    return Decoder::ActivationBytes() + (assistant_ ? assistant_->ActivationBytes() : 0);
  }
  std::size_t OwnedWeightBytes() const override {
    return Decoder::OwnedWeightBytes() + (assistant_ ? assistant_->OwnedWeightBytes() : 0);
  }

 protected:
  Status LoadModelTensors(WeightReader& reader) override;
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  AttentionSpan attention_span(int layer) const override {
    return gemma_.kinds.spans[static_cast<std::size_t>(layer)];
  }
  RopeParams rope(int layer) const override { return gemma_.kinds.Rope(layer); }
  std::vector<LayerMemory> Memory() const override;

 private:
  struct InputGate {
    Projection gate, back;  // hidden_size → P → hidden_size
    Norm post_norm;
  };
  struct Layer : Gemma4Layer {
    Norm k_norm;  // [head]
    std::optional<Projection> k, v;
    std::optional<InputGate> input;
  };

  int head_dim(int layer) const { return gemma_.kinds.HeadDim(layer); }
  // Returns the layer whose keys and values `layer` attends over.
  int KvLayer(int layer) const;
  // Returns the last layer of a kind that has keys and values.
  AssistantTarget::Source LastOfKind(bool windowed) const;
  Status LoadKeysAndValues(WeightReader& reader, int index, Layer* layer) const;
  Status LoadInput(WeightReader& reader, int index, Layer* layer) const;
  void Attend(Pass& pass, int index, const TensorView& h) const;
  void PutKeysAndValues(Pass& pass, int index, const TensorView& h) const;
  void AddInput(Pass& pass, int index, const TensorView& x) const;

  Gemma4Params gemma_;
  std::vector<float> ones_;  // the weights of a norm without weights
  TensorView input_table_;   // [P · layers, vocabulary]
  Projection input_model_;   // hidden_size → P · layers
  Norm input_norm_;          // [P]
  TensorView inputs_;        // [P, layers, batch] of the current pass
  std::vector<Layer> layers_;
  ExpertPlan plan_;
  std::unique_ptr<Gemma4Assistant> assistant_;  // null without a draft head
};

int Gemma4::KvLayer(int layer) const {
  int source = std::min(layer, gemma_.kv_layers - 1);
  while (source > 0 && attention_span(source) != attention_span(layer)) --source;
  return source;
}

std::vector<LayerMemory> Gemma4::Memory() const {
  std::vector<LayerMemory> layers = Decoder::Memory();
  for (LayerMemory& layer : layers) {
    layer.kv.k_dim = layer.kv.v_dim = head_dim(layer.layer);
    if (layer.layer >= gemma_.kv_layers) layer.kv.kv_heads = 0;
  }
  return layers;
}

// ---- Loading

Status Gemma4::LoadModelTensors(WeightReader& reader) {
  if (gemma_.input_size == 0) return Status::Ok();
  const std::int64_t all = std::int64_t{gemma_.input_size} * params().layers;
  KVCACHE_ASSIGN_OR_RETURN(input_table_,
                           reader.Table("per_layer_token_embd.weight", all, params().vocabulary));
  KVCACHE_ASSIGN_OR_RETURN(input_model_,
                           reader.Linear("per_layer_model_proj", params().hidden_size, all));
  KVCACHE_ASSIGN_OR_RETURN(
      input_norm_, reader.RmsNorm("per_layer_proj_norm", gemma_.input_size, params().norm_epsilon));
  return Status::Ok();
}

Status Gemma4::LoadKeysAndValues(WeightReader& reader, int index, Layer* layer) const {
  const std::string prefix = LayerPrefix(index) + "attn_";
  const LayerParams& p = params();
  const std::int64_t dim = head_dim(index);
  const std::int64_t keys = p.kv_heads[static_cast<std::size_t>(index)] * dim;
  if (index >= gemma_.kv_layers) {
    // Older files still contain these tensors; llama.cpp's converter has since dropped them.
    for (const char* const unused : {"k.weight", "v.weight", "k_norm.weight"}) {
      reader.Ignore(prefix + unused);
    }
    return Status::Ok();
  }
  KVCACHE_ASSIGN_OR_RETURN(layer->k, reader.Linear(prefix + "k", p.hidden_size, keys));
  KVCACHE_ASSIGN_OR_RETURN(layer->k_norm, reader.RmsNorm(prefix + "k_norm", dim, p.norm_epsilon));
  if (!reader.Has(prefix + "v.weight")) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(layer->v, reader.Linear(prefix + "v", p.hidden_size, keys));
  return Status::Ok();
}

Status Gemma4::LoadInput(WeightReader& reader, int index, Layer* layer) const {
  if (gemma_.input_size == 0) return Status::Ok();
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  InputGate input;
  KVCACHE_ASSIGN_OR_RETURN(input.gate,
                           reader.Linear(prefix + "inp_gate", p.hidden_size, gemma_.input_size));
  KVCACHE_ASSIGN_OR_RETURN(input.back,
                           reader.Linear(prefix + "proj", gemma_.input_size, p.hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(input.post_norm,
                           reader.RmsNorm(prefix + "post_norm", p.hidden_size, p.norm_epsilon));
  layer->input = std::move(input);
  return Status::Ok();
}

Status Gemma4::LoadLayer(WeightReader& reader, int index) {
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(
      static_cast<Gemma4Layer&>(layer),
      Gemma4Layer::Load(reader, params(), gemma_.experts, index, head_dim(index)));
  KVCACHE_RETURN_IF_ERROR(LoadKeysAndValues(reader, index, &layer));
  KVCACHE_RETURN_IF_ERROR(LoadInput(reader, index, &layer));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

// ---- The graph

void Gemma4::RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) {
  if (gemma_.input_size == 0) return Decoder::RunLayers(pass, tokens, x);
  const Pass::Scope scope(pass);
  const float hidden_size = static_cast<float>(params().hidden_size);
  inputs_ = pass.TakeHeads(gemma_.input_size, params().layers);
  const TensorView all = Flatten(inputs_);
  pass.Linear(x, {{input_model_, all}});
  pass.Scale(all, 1.0f / std::sqrt(hidden_size));
  pass.RmsNorm(inputs_, input_norm_, inputs_);
  {
    const Pass::Scope tables(pass);
    const TensorView embedded = pass.TakeHidden(all.dims[0]);
    pass.Embed(input_table_, tokens, embedded);
    pass.Scale(embedded, std::sqrt(static_cast<float>(gemma_.input_size)));
    pass.Add(all, embedded);
  }
  pass.Scale(all, 1.0f / std::sqrt(2.0f));
  Decoder::RunLayers(pass, tokens, x);
}

// Computes x += rms(Wproj (gelu(Wgate x) × the layer's input)).
void Gemma4::AddInput(Pass& pass, int index, const TensorView& x) const {
  const InputGate& input = *layers_[static_cast<std::size_t>(index)].input;
  const Pass::Scope scope(pass);
  const TensorView gated = pass.TakeHidden(gemma_.input_size);
  const TensorView layer_input = pass.TakeHidden(gemma_.input_size);
  const TensorView back = pass.TakeHidden(params().hidden_size);
  // inputs_ is [P, layers, batch]; this layer's part is one row per token, strided by all layers.
  TensorView from = WithOffset(inputs_, index * inputs_.stride_bytes[1]);
  from.dims = {inputs_.dims[0], inputs_.dims[2], 1, 1};
  from.stride_bytes[1] = inputs_.stride_bytes[2];
  pass.Copy(from, layer_input);
  pass.Linear(x, {{input.gate, gated}});
  pass.Gate(gated, layer_input, Activation::kGelu);
  pass.Linear(gated, {{input.back, back}});
  pass.RmsNorm(back, input.post_norm, back);
  pass.Add(x, back);
}

void Gemma4::PutKeysAndValues(Pass& pass, int index, const TensorView& h) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const int kv_heads = params().kv_heads[static_cast<std::size_t>(index)];
  const int dim = head_dim(index);
  const Pass::Scope scope(pass);
  const TensorView k = pass.TakeHeads(dim, kv_heads);
  const TensorView v = pass.TakeHeads(dim, kv_heads);
  // A norm reads weights; ones leave its result unchanged. The backend only reads them.
  const Norm unweighted{TensorView::Dense(const_cast<float*>(ones_.data()), DType::kF32, dim),
                        params().norm_epsilon};
  if (layer.v) {
    pass.Linear(h, {{*layer.k, k}, {*layer.v, v}});
    pass.RmsNorm(v, unweighted, v);
  } else {
    // Without a V matrix: v is the product for k, before k's norm and rotation.
    pass.Linear(h, {{*layer.k, k}});
    pass.RmsNorm(k, unweighted, v);
  }
  pass.RmsNorm(k, layer.k_norm, k);
  pass.Rope(k, rope(index));
  pass.Put(index, k, v);
}

// Computes h = Wo attention(h).
void Gemma4::Attend(Pass& pass, int index, const TensorView& h) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  if (layer.k) PutKeysAndValues(pass, index, h);
  const Pass::Scope scope(pass);
  const TensorView q = pass.TakeHeads(layer.dim, layer.heads);
  const TensorView att = pass.TakeHeads(layer.dim, layer.heads);
  layer.Queries(pass, h, rope(index), q);
  pass.Attend(KvLayer(index), q, {.scale = params().attention_scale}, att);
  pass.Linear(att, {{layer.o, h}});
}

void Gemma4::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.attn_norm, h);
  Attend(pass, index, h);
  layer.AddAttended(pass, plan_, h, x);
  if (layer.input) AddInput(pass, index, x);
  if (layer.scale != 1.0f) pass.Scale(x, layer.scale);
}

// ---- The draft head

AssistantTarget::Source Gemma4::LastOfKind(bool windowed) const {
  int layer = gemma_.kv_layers - 1;
  while (layer >= 0 && (attention_span(layer).window > 0) != windowed) --layer;
  if (layer < 0) return {};
  return {.layer = layer,
          .kv_heads = params().kv_heads[static_cast<std::size_t>(layer)],
          .dim = head_dim(layer),
          .window = attention_span(layer).window};
}

Status Gemma4::LoadHead(const GgufFile& file) {
  KVCACHE_ASSIGN_OR_RETURN(assistant_,
                           Gemma4Assistant::Load(file, backend(),
                                                 {.hidden_size = params().hidden_size,
                                                  .vocabulary = params().vocabulary,
                                                  .embedding = token_table(),
                                                  .embedding_scale = params().embedding_scale,
                                                  .full = LastOfKind(false),
                                                  .windowed = LastOfKind(true)}));
  return Status::Ok();
}

Status Gemma4::Reserve(int max_batch) {
  KVCACHE_RETURN_IF_ERROR(Decoder::Reserve(max_batch));
  return assistant_ ? assistant_->Reserve(kMaxDraftRows) : Status::Ok();
}

Status Gemma4::BeginDrafts(Cache& cache, std::span<const SequenceLength> rows) {
  if (assistant_ == nullptr) return Decoder::BeginDrafts(cache, rows);
  return assistant_->Begin(cache, rows);
}

Status Gemma4::Draft(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                     const float* states, Cache& cache, float* logits, float* next_states) {
  if (assistant_ == nullptr) return Unsupported("the model has no draft head");
  KVCACHE_RETURN_IF_ERROR(CheckDrafts(tokens, positions));
  return assistant_->Draft({tokens, positions, states, logits, next_states}, cache, interrupt());
}

// ---- Keys

// Checks that each layer without keys and values has an earlier layer of its kind to share with.
Status ReadSharing(KeyReader& keys, const LayerParams& params, Gemma4Params* gemma) {
  constexpr std::string_view kShared = "attention.shared_kv_layers";
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t shared, keys.file().GetIntOr(keys.Key(kShared), 0));
  keys.Ignore(kShared);
  if (shared < 0 || shared >= params.layers) {
    return Corrupt(StrCat(keys.Key(kShared), " is ", shared, "; must be 0 to ", params.layers - 1));
  }
  gemma->kv_layers = params.layers - static_cast<int>(shared);
  const auto first_shared = gemma->kinds.spans.begin() + gemma->kv_layers;
  for (auto layer = first_shared; layer != gemma->kinds.spans.end(); ++layer) {
    if (std::find(gemma->kinds.spans.begin(), first_shared, *layer) != first_shared) continue;
    return Corrupt(StrCat(keys.Key(kShared), " is ", shared, ": layer ",
                          layer - gemma->kinds.spans.begin(),
                          " needs an earlier layer with the same window that has keys and values"));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeGemma4(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  params.embedding_scale = std::sqrt(static_cast<float>(params.hidden_size));
  if (!keys.Has("attention.scale")) params.attention_scale = 1.0f;
  KVCACHE_ASSIGN_OR_RETURN(params.logit_soft_cap,
                           ReadSoftCap(keys, "final_logit_softcapping", 0.0));
  Gemma4Params gemma;
  KVCACHE_ASSIGN_OR_RETURN(gemma.experts, ReadExpertParams(keys, params));
  gemma.experts.activation = Activation::kGelu;
  KVCACHE_ASSIGN_OR_RETURN(gemma.kinds, Gemma4Kinds::Read(keys, params, source.weights));
  KVCACHE_RETURN_IF_ERROR(ReadSharing(keys, params, &gemma));
  KVCACHE_ASSIGN_OR_RETURN(gemma.input_size,
                           keys.IntOrZero("embedding_length_per_layer_input", 1 << 16));
  IgnoreVisionAndAudio(keys, source.weights);
  return source.Make<Gemma4>(std::move(params), std::move(gemma));
}

}  // namespace kvcache
