// A stack of layers between an embedding and an output matrix: what all decoder-only families
// have in common. A family derives from it and says what a layer is:
//
//   class Llama final : public Decoder {
//     Status LoadLayer(WeightReader& reader, int layer) override;        its weights
//     void RunLayer(Pass& pass, int layer, const TensorView& x) override;  its graph
//     RopeParams rope(int layer) const override;                         how its keys turn
//     AttentionSpan attention_span(int layer) const override;                             how far
//     back it sees
//   };
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/graph/activation_buffer.h"
#include "model/graph/layer_caches.h"
#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"
#include "model/model.h"

namespace kvcache {

class Decoder : public Model {
 public:
  // `architecture` as in general.architecture; a literal.
  Decoder(Backend& backend, std::string_view architecture, LayerParams params)
      : backend_(backend), architecture_(architecture), params_(std::move(params)) {}

  // Takes all weights out of the file. Errors name the tensor: missing, of another shape or type,
  // or not part of the family. Called once.
  Status Load(WeightReader& reader, const GgufFile& file);

  const ModelInfo& info() const override { return info_; }
  // Causal caches, one for all layers that see equally far. A family with another kind overrides
  // it.
  std::unique_ptr<Cache> MakeCache() override;
  Status Reserve(int max_batch) override;
  Status Forward(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                 Cache& cache) override;
  Status Logits(std::span<const std::int32_t> rows, float* logits) override;
  std::size_t OwnedWeightBytes() const override { return owned_weight_bytes_; }

 protected:
  const LayerParams& params() const { return params_; }
  Backend& backend() const { return backend_; }
  const TensorView& embedding() const { return embedding_; }  // [hidden_size, vocabulary]

  // What is there once, beside the common parts; called before the layers.
  virtual Status LoadModelTensors(WeightReader& /*reader*/) { return Status::Ok(); }
  // Called for layers 0, 1, … in order.
  virtual Status LoadLayer(WeightReader& reader, int layer) = 0;
  // Adds the layer's part to x [hidden_size, batch].
  virtual void RunLayer(Pass& pass, int layer, const TensorView& x) = 0;
  // All layers, after the embedding. A family that needs something for all of them first overrides
  // it; `tokens` is empty while measuring.
  virtual void RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x);
  // Valid as long as the model.
  virtual RopeParams rope(int layer) const = 0;
  // The tensor with the last norm's weight, but for ".weight".
  virtual std::string_view output_norm_name() const { return "output_norm"; }
  // How far back the layer's queries see.
  virtual AttentionSpan attention_span(int /*layer*/) const { return {}; }
  // What the layers keep: keys and values as far as each spans. A family with another cache kind
  // overrides it.
  virtual std::vector<LayerMemory> Memory() const;
  // Turns a layer's keys by its rope; refers to the model.
  ShiftKeysFn ShiftKeys();

 private:
  void FillInfo(const GgufFile& file);
  Status CheckRows(std::span<const std::int32_t> rows) const;

  Backend& backend_;
  std::string_view architecture_;
  LayerParams params_;
  ModelInfo info_;
  TensorView embedding_;  // [hidden_size, vocabulary]
  Norm output_norm_;
  Projection output_;  // hidden_size → vocabulary
  std::size_t owned_weight_bytes_ = 0;

  // The hidden states come first in it, so that Logits finds them.
  ActivationBuffer activations_;
  std::int64_t max_batch_ = 0;
  std::int64_t batch_ = 0;  // of the last Forward
};

// The model, loaded.
Result<std::unique_ptr<Model>> LoadDecoder(std::unique_ptr<Decoder> decoder, WeightReader& reader,
                                           const GgufFile& file);

}  // namespace kvcache
