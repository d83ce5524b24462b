// A stack of layers between an embedding and an output matrix: the common part of all decoder
// families. A family derives from it and defines its layers:
//
//   class Llama final : public Decoder {
//     Status LoadLayer(WeightReader& reader, int layer) override;           its weights
//     void RunLayer(Pass& pass, int layer, const TensorView& x) override;   its graph
//     RopeParams rope(int layer) const override;                            rotation of its keys
//     AttentionSpan attention_span(int layer) const override;               tokens that it sees
//   };
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/adapter/adapter_bank.h"
#include "model/graph/activation_buffer.h"
#include "model/graph/decoder_texts.h"
#include "model/graph/draft_head.h"
#include "model/graph/host_values.h"
#include "model/graph/layer_caches.h"
#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"
#include "model/model.h"

namespace kvcache {

class Decoder : public Model {
 public:
  // `architecture` is the file's general.architecture; its characters must outlive the model.
  Decoder(Backend& backend, std::string_view architecture, LayerParams params)
      : backend_(backend), architecture_(architecture), params_(std::move(params)) {}

  // Takes all weights from the file. Call it once. Errors name the tensor: it is missing, has
  // another shape or type, or is not part of the family.
  Status Load(WeightReader& reader, const GgufFile& file);

  const ModelInfo& info() const override { return info_; }
  EmbeddingModel* embedding() override { return &texts_; }
  // Makes one causal cache per attention span. A family with another kind of cache overrides this.
  std::unique_ptr<Cache> MakeCache() override;
  Status Reserve(int max_batch) override;
  std::int64_t ActivationBytes() const override {
    return activations_.bytes() + draft_activations_.bytes() + texts_.bytes() +
           adapters_.scratch_bytes();
  }
  Status Forward(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                 Cache& cache) override;
  Status Logits(std::span<const std::int32_t> rows, float* logits) override;
  std::size_t OwnedWeightBytes() const override {
    return owned_weight_bytes_ + adapters_.owned_bytes();
  }
  void SetInputRows(std::span<const InputRows> rows) override { input_rows_ = rows; }
  void SetAxes(std::span<const Position> axes) override { axes_ = axes; }
  Status AddAdapter(const AdapterFile& file) override;
  void SetAdapters(std::span<const AdapterUses> of_token) override { of_token_ = of_token; }
  Status Encode(std::span<const std::int32_t> tokens, SequenceId sequence, Cache& cache) override;
  Status EncodeStates(const TensorView& states, SequenceId sequence, Cache& cache) override;

  Status LoadHead(const GgufFile& file) override;
  bool has_head() const override { return head_.has_value(); }
  std::span<const std::int32_t> head_tokens() const override {
    return head_ ? std::span<const std::int32_t>(head_->tokens) : std::span<const std::int32_t>();
  }
  Status BeginDrafts(Cache& cache, std::span<const SequenceLength> rows) override;
  void SetPrevious(const PreviousStates& previous) override { previous_ = previous; }
  Status FinalStates(std::span<const std::int32_t> rows, float* states) override;
  Status Draft(std::span<const std::int32_t> tokens, std::span<const Position> positions,
               const float* states, Cache& cache, float* logits, float* next_states) override;

 protected:
  const LayerParams& params() const { return params_; }
  Backend& backend() const { return backend_; }
  std::string_view architecture() const { return architecture_; }
  const TensorView& token_table() const { return embedding_; }  // [hidden_size, vocabulary]

  // Loads tensors that exist once per model, besides embedding, last norm and output. Called before
  // the layers.
  virtual Status LoadModelTensors(WeightReader& /*reader*/) { return Status::Ok(); }
  // Called for layers 0, 1, … in order.
  virtual Status LoadLayer(WeightReader& reader, int layer) = 0;
  // Adds the layer's result to x [hidden_size, batch].
  virtual void RunLayer(Pass& pass, int layer, const TensorView& x) = 0;
  // Runs all layers on the embedded tokens x. A family that computes something for all layers first
  // overrides this. `tokens` is empty while the pass measures.
  virtual void RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x);
  // Returns the rotation of a layer's queries and keys; dims 0: none. Valid as long as the model.
  virtual RopeParams rope(int layer) const = 0;
  // Returns whether LoadLayer and RunLayer also take the block behind the last layer, a draft head's, which
  // has full attention.
  virtual bool can_have_head() const { return false; }
  // Returns kInvalidArgument unless Draft may run for these rows.
  static Status CheckDrafts(std::span<const std::int32_t> tokens,
                            std::span<const Position> positions);
  // Returns the cache, with one for the head's layer beside it if there is a head.
  std::unique_ptr<Cache> WithHeadCache(std::unique_ptr<Cache> cache);
  // Returns the tokens that a layer's queries see. The default is all tokens.
  virtual AttentionSpan attention_span(int /*layer*/) const { return {}; }
  // Returns the memory of each layer: keys and values within its attention span. A family with
  // another kind of cache overrides this.
  virtual std::vector<LayerMemory> Memory() const;
  // Returns whether all products of a token's layers are those of a pass. An encoder has others.
  virtual bool can_have_adapters() const { return true; }
  // Returns whether rotating a cached key gives the key of another position.
  virtual bool can_shift_keys() const { return true; }
  // Returns the function that rotates a layer's cached keys to other positions; none if that gives other keys.
  // The model must outlive it.
  ShiftKeysFn ShiftKeys();
  // Returns what the bytes of this model's caches depend on, for CausalOptions::keys_identity: the
  // model's file and the rotation of each layer's keys. Loaded weights are required.
  std::string KeysIdentity() const;

 private:
  friend class DecoderTexts;

  void FillInfo(const GgufFile& file);
  Status CheckRows(std::span<const std::int32_t> rows) const;
  // Writes the states of rows of the last Forward, from `first` on, behind the last norm: as many as y [hidden_size, rows]
  // has.
  Status NormalizeRows(std::int64_t first, const TensorView& y) const;
  Status CheckHeadFile(const GgufFile& file) const;
  void EmbedTokens(Pass& pass, const TensorView& table, std::span<const std::int32_t> tokens,
                   const TensorView& x) const;
  void ScaleEmbedding(Pass& pass, const TensorView& x) const;
  // Begins a pass with the adapters of its tokens, and embeds these.
  void EmbedAdapted(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x);
  // Returns the tokens with 0 in the place of those that have input rows. May throw std::bad_alloc.
  std::span<const std::int32_t> EmbeddedTokens(std::span<const std::int32_t> tokens);
  // Puts the input rows into x [hidden_size, batch].
  void CopyInputRows(Pass& pass, const TensorView& x);
  void EmbedForHead(Pass& pass, std::span<const std::int32_t> tokens,
                    const TensorView& embedded) const;
  // Gives the cache the head's keys and values of the pass's tokens.
  void PutHead(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& finals);
  void CopyPrevious(Pass& pass, const TensorView& finals, const TensorView& previous) const;
  // Leaves the head's state in `state`, and returns it normed.
  TensorView RunDraft(Pass& pass, std::span<const std::int32_t> tokens, const float* states);
  // Scales and caps products of the output matrix, and brings them to the host.
  Status FinishLogits(const TensorView& y, float* logits) const;

  Backend& backend_;
  std::string_view architecture_;
  LayerParams params_;
  ModelInfo info_;
  DecoderTexts texts_{*this};
  PlacedTensors placed_;  // what views of weights refer to
  HostValues host_logits_, host_states_;
  TensorView embedding_;  // [hidden_size, vocabulary]
  Norm output_norm_;
  Projection output_;  // hidden_size → vocabulary
  std::size_t owned_weight_bytes_ = 0;
  std::uint64_t digest_ = 0;  // of the file

  AdapterBank adapters_;
  std::span<const AdapterUses> of_token_;  // of the next Forward

  std::span<const InputRows> input_rows_;      // of the next Forward
  std::span<const Position> axes_;             // of the next Forward
  std::vector<std::int32_t> embedded_tokens_;  // scratch of a pass with input rows

  std::optional<DraftHead> head_;
  std::uint64_t head_digest_ = 0;
  PreviousStates previous_;   // of the next Forward
  std::vector<float> zeros_;  // [hidden_size]: a state that is not known
  ActivationBuffer draft_activations_;

  // Hidden states are its first view, so that Logits finds them after the pass. With a head, the second
  // is scratch of Logits and the third has the final states.
  ActivationBuffer activations_;
  std::int64_t max_batch_ = 0;
  std::int64_t batch_ = 0;  // of the last Forward
};

}  // namespace kvcache
