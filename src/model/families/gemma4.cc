// The gemma4 architecture: gemma3's layers with these differences.
//
//   - Layers with a window have their own head size and rotation.
//   - Values are normed without a weight, and scores are not scaled.
//   - A layer without a V matrix uses the K matrix's product as values, before norm and rotation.
//   - The last layers (attention.shared_kv_layers) have queries alone. They attend over the keys
//     and values of the last earlier layer of the same kind (with or without a window).
//   - With embedding_length_per_layer_input, each layer gets an input vector (layer_inputs.h). The layer
//     adds its result at its end.
//   - A layer's result may be scaled (layer_output_scale).
//   - A layer may have experts beside its gated network (gemma4_layer.h).
//
// Source: Google's published configuration and code in Hugging Face's modeling_gemma4.py; keys and
// tensors as llama.cpp writes and reads them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "model/families/architectures.h"
#include "model/families/gemma4_assistant.h"
#include "model/families/gemma4_layer.h"
#include "model/graph/attention/shared_kv.h"
#include "model/graph/decoder.h"
#include "model/graph/layer_inputs.h"

namespace kvcache {
namespace {

struct Gemma4Params {
  Gemma4Kinds kinds;
  ExpertParams experts;
  SharedKv shared;
  int input_size = 0;  // values of a layer's input vector; 0: layers have none
};

class Gemma4 final : public Decoder {
 public:
  Gemma4(Backend& backend, std::string_view name, LayerParams params, Gemma4Params gemma)
      : Decoder(backend, name, std::move(params)), gemma_(std::move(gemma)) {}

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
  struct Layer : Gemma4Layer {
    Norm k_norm;        // [head]
    PlacedVector ones;  // [head]: the weights of the values' norm
    std::optional<Projection> k, v;
    std::optional<InputGate> input;
  };

  int head_dim(int layer) const { return gemma_.kinds.HeadDim(layer); }
  // Returns the last layer of a kind that has keys and values.
  AssistantTarget::Source LastOfKind(bool windowed) const;
  Status LoadKeysAndValues(WeightReader& reader, int index, Layer* layer) const;
  void Attend(Pass& pass, int index, const TensorView& h) const;
  void PutKeysAndValues(Pass& pass, int index, const TensorView& h) const;

  Gemma4Params gemma_;
  std::optional<LayerInputs> inputs_;
  std::vector<Layer> layers_;
  ExpertPlan plan_;
  std::unique_ptr<Gemma4Assistant> assistant_;  // null without a draft head
};

std::vector<LayerMemory> Gemma4::Memory() const {
  std::vector<LayerMemory> layers = Decoder::Memory();
  for (LayerMemory& layer : layers) {
    layer.kv.k_dim = layer.kv.v_dim = head_dim(layer.layer);
    if (!gemma_.shared.HasOwn(layer.layer)) layer.kv.kv_heads = 0;
  }
  return layers;
}

// ---- Loading

Status Gemma4::LoadModelTensors(WeightReader& reader) {
  if (gemma_.input_size == 0) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(inputs_, LayerInputs::Load(reader, params(), gemma_.input_size));
  return Status::Ok();
}

Status Gemma4::LoadKeysAndValues(WeightReader& reader, int index, Layer* layer) const {
  const LayerParams& p = params();
  const std::int64_t dim = head_dim(index);
  const std::int64_t keys = p.kv_heads[static_cast<std::size_t>(index)] * dim;
  if (!gemma_.shared.HasOwn(index)) {
    SharedKv::IgnoreTensors(reader, LayerPrefix(index));
    return Status::Ok();
  }
  const std::string prefix = LayerPrefix(index) + "attn_";
  KVCACHE_ASSIGN_OR_RETURN(layer->k, reader.Linear(prefix + "k", p.hidden_size, keys));
  KVCACHE_ASSIGN_OR_RETURN(layer->k_norm, reader.RmsNorm(prefix + "k_norm", dim, p.norm_epsilon));
  if (!reader.Has(prefix + "v.weight")) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(layer->v, reader.Linear(prefix + "v", p.hidden_size, keys));
  return Status::Ok();
}

Status Gemma4::LoadLayer(WeightReader& reader, int index) {
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(
      static_cast<Gemma4Layer&>(layer),
      Gemma4Layer::Load(reader, params(), gemma_.experts, index, head_dim(index)));
  KVCACHE_RETURN_IF_ERROR(LoadKeysAndValues(reader, index, &layer));
  KVCACHE_ASSIGN_OR_RETURN(layer.ones, PlacedVector::Make(backend(), index, head_dim(index), 1.0f));
  if (inputs_) {
    KVCACHE_ASSIGN_OR_RETURN(layer.input,
                             InputGate::Load(reader, params(), gemma_.input_size, index));
  }
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

// ---- The graph

void Gemma4::RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) {
  const Pass::Scope scope(pass);
  if (inputs_) inputs_->Compute(pass, tokens, x);
  Decoder::RunLayers(pass, tokens, x);
}

void Gemma4::PutKeysAndValues(Pass& pass, int index, const TensorView& h) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const int kv_heads = params().kv_heads[static_cast<std::size_t>(index)];
  const int dim = head_dim(index);
  const Pass::Scope scope(pass);
  const TensorView k = pass.TakeHeads(dim, kv_heads);
  const TensorView v = pass.TakeHeads(dim, kv_heads);
  // A norm reads weights; ones leave its result unchanged.
  const Norm unweighted{layer.ones.view(), params().norm_epsilon};
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
  pass.Attend(gemma_.shared.SourceOf(index), q, {.scale = params().attention_scale}, att);
  pass.Linear(att, {{layer.o, h}});
}

void Gemma4::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.attn_norm, h);
  Attend(pass, index, h);
  layer.AddAttended(pass, plan_, h, x);
  if (layer.input) {
    layer.input->Run(pass, *inputs_, index, x, h);
    pass.Add(x, h);
  }
  if (layer.scale != 1.0f) pass.Scale(x, layer.scale);
}

// ---- The draft head

AssistantTarget::Source Gemma4::LastOfKind(bool windowed) const {
  int layer = gemma_.shared.own - 1;
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
                                                 {.layers = params().layers,
                                                  .hidden_size = params().hidden_size,
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
  KVCACHE_ASSIGN_OR_RETURN(gemma.shared, SharedKv::Read(keys, params, gemma.kinds.spans, 0));
  KVCACHE_ASSIGN_OR_RETURN(gemma.input_size,
                           keys.IntOrZero("embedding_length_per_layer_input", 1 << 16));
  IgnoreVisionAndAudio(keys, source.weights);
  return source.Make<Gemma4>(std::move(params), std::move(gemma));
}

}  // namespace kvcache
