// The draft head of gemma4, a file of its own ("assistant", architecture gemma4-assistant): a few small
// layers that have no keys and values. They attend over those of the model.
//
//   x = Wpre · (√H · embed[token] | state)      the model's embedding, H values each
//   layers: gemma4's, with queries alone         over the last layer of the model of the same kind
//                                                (with or without a window) that has keys and values
//   logits = Woutput · (rms(x) · output_norm)    the head's own output matrix, of all tokens
//   next state = Wpost · (rms(x) · output_norm)
//
// `state` is the model's final state for the last token that was evaluated, after the last norm; to draft
// further, the next state takes its place. The position is the same for all drafts of a round: the one after
// the last token that was evaluated. So a head needs no cache, and the model's states do not depend on it.
//
// Source: Google's published configuration and code in Hugging Face's modeling_gemma4_assistant.py; keys and
// tensors as llama.cpp writes and reads them. Its masked_embd tensors, a shorter way to the best tokens,
// are not used.
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/transaction.h"
#include "model/families/gemma4_layer.h"
#include "model/graph/activation_buffer.h"
#include "model/graph/host_values.h"
#include "model/graph/sequence_views.h"

namespace kvcache {

// What the head reads of the model.
struct AssistantTarget {
  struct Source {
    int layer = -1;  // -1: the model has no layers of this kind
    int kv_heads = 0;
    int dim = 0;     // values of a head
    int window = 0;  // tokens that a query sees, its own included; 0: all
  };
  int layers = 0;  // of the model: the head is behind them
  int hidden_size = 0;
  int vocabulary = 0;
  TensorView embedding;  // [hidden_size, at least `vocabulary`]
  float embedding_scale = 1.0f;
  Source full, windowed;
};

class Gemma4Assistant {
 public:
  // Drafts side by side, each at the position after the last evaluated token of its sequence.
  struct Inputs {
    std::span<const std::int32_t> tokens;
    std::span<const Position> positions;
    const float* states;  // [H, batch]
    float* logits;        // [vocabulary, batch]
    float* next_states;   // [H, batch]; may be `states`
  };

  // `file` and `backend` must outlive the result. Errors: kNotFound for a file of another kind; those of
  // sizes that are not the model's, with both; those of keys and tensors.
  static Result<std::unique_ptr<Gemma4Assistant>> Load(const GgufFile& file, Backend& backend,
                                                       const AssistantTarget& target);

  // Allocates the activations of `max` drafts side by side.
  Status Reserve(int max);
  // Says which tokens each row of the next drafts follows: the first ones of its sequence, which are evaluated.
  // Valid until a call changes the cache. Errors: SequenceViews::Set's.
  Status Begin(Cache& cache, std::span<const SequenceLength> rows);
  // REQUIRES: Begin with the same cache, and Reserve. Errors: kInvalidArgument for another number of rows.
  Status Draft(const Inputs& inputs, Cache& cache, const std::atomic<bool>* interrupt);

  std::int64_t ActivationBytes() const { return activations_.bytes(); }
  std::size_t OwnedWeightBytes() const { return owned_weight_bytes_; }

 private:
  Gemma4Assistant(Backend& backend, const AssistantTarget& target)
      : backend_(backend), target_(target) {}

  Status ReadKeys(KeyReader& keys, WeightReader& weights);
  Status CheckTarget(KeyReader& keys) const;
  Status LoadTensors(WeightReader& weights);
  const AssistantTarget::Source& SourceOf(int layer) const {
    return kinds_.IsWindowed(layer) ? target_.windowed : target_.full;
  }
  struct Results {
    TensorView normed;  // [hidden_size, batch]
    TensorView next;    // [H, batch]
  };
  Results Run(Pass& pass, std::span<const std::int32_t> tokens, const float* states);
  void RunLayer(Pass& pass, int index, const TensorView& x);

  Backend& backend_;
  const AssistantTarget target_;
  LayerParams params_;
  Gemma4Kinds kinds_;
  Projection pre_, post_, output_;
  Norm output_norm_;
  PlacedTensors placed_;  // what views of weights refer to
  HostValues host_logits_;
  std::vector<Gemma4Layer> layers_;
  ExpertPlan plan_;  // of no experts
  std::size_t owned_weight_bytes_ = 0;
  ActivationBuffer activations_;
  std::size_t rows_ = 0;           // of Begin
  SequenceViews full_, windowed_;  // what the drafts see
};

}  // namespace kvcache
