// A model: weights bound to a backend, and its forward pass over a cache.
//
// Each architecture is one implementation in one file (families/llama.cc, …), registered in
// families/architectures.cc. A model keeps no state between passes except its activation buffer:
// everything that a sequence remembers is in the cache.
//
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cache.h"
#include "kvcache/status.h"
#include "kvcache/transaction.h"
#include "kvcache_engine/adapter.h"
#include "kvcache_engine/picture.h"
#include "model/layer_memory.h"

namespace kvcache {

class AdapterFile;
class GgufFile;

// The description of a model.
struct ModelInfo {
  std::string architecture;  // as in general.architecture
  std::string name;          // general.name, or empty
  int layers = 0;
  int hidden_size = 0;     // values per token between layers
  int vocabulary = 0;      // rows of the output matrix
  int embedding_rows = 0;  // rows of the embedding, at least `vocabulary`: valid token ids
  int context_length = 0;  // tokens that the model was trained for
  std::int64_t parameters = 0;
  // The first token of every decoder text of an encoder-decoder model; -1 for other models.
  std::int32_t decoder_start = -1;
  bool three_axes = false;  // rotations have three axes (Model::SetAxes)
  // An encoder: each token of a text sees all others. It has no logits and needs no cache.
  bool is_encoder = false;
  std::vector<LayerMemory> memory;  // memory of each layer
};

// For each token of a pass, the final state of the token before it, which a draft head reads.
struct PreviousStates {
  static constexpr std::int32_t kUnknown = -1;
  // [batch]: an earlier row of the batch; -2 - i: row i of `known`; kUnknown: zeros take its place, and
  // drafts near that token are less often right.
  std::span<const std::int32_t> of_token{};
  const float* known = nullptr;  // [hidden_size, any number], host memory
};

// What embeddings need of a model besides Forward and FinalStates.
class EmbeddingModel {
 public:
  // Allocates memory for passes of up to `tokens` tokens of up to `texts` texts, and gives back what is more. Errors:
  // kOutOfMemory with the size; no pass may run then until a later call succeeds.
  virtual Status ReserveTexts(int tokens, int texts) = 0;

  // Evaluates whole texts of `lengths` tokens, one after another in `tokens`. Each token sees all tokens of its
  // own text. FinalStates then has the states. `between_layers` is called between two layers, unless it is empty.
  // REQUIRES: info().is_encoder, and ReserveTexts for as many.
  virtual Status ForwardTexts(std::span<const std::int32_t> tokens,
                              std::span<const std::int32_t> lengths,
                              const std::function<void()>& between_layers) = 0;

  // Returns the values that RunHead makes of pooled states: a vector's, or a reranker's scores.
  virtual int head_outputs() const = 0;
  // Returns whether a reranker's head reads the mean of a text's states, and not one of them.
  virtual bool head_reads_mean() const = 0;
  // Returns whether the file has tensors for scores, as rerankers need them.
  virtual bool has_scores() const = 0;
  // Applies what the file has behind the pooling to states [hidden_size, count]: nothing, dense layers, or
  // a reranker's scores. Writes [head_outputs(), count]. `adapters`: of all of them; none: an empty span.
  virtual Status RunHead(const float* states, int count, AdapterUses adapters, float* out) = 0;

 protected:
  ~EmbeddingModel() = default;
};

class Model {
 public:
  virtual ~Model() = default;

  // Never null.
  virtual EmbeddingModel* embedding() = 0;

  virtual const ModelInfo& info() const = 0;

  // Encode, EncodeStates and Forward fail with kCancelled as soon as *interrupt is true. They check
  // it before each operation. An interrupted pass leaves the cache as a failed kernel would:
  // remove the pass's tokens before the next pass. Null, the default: no check.
  void SetInterrupt(const std::atomic<bool>* interrupt) { interrupt_ = interrupt; }

  // Makes the kind of cache that the layers need, without initialising it. The model must outlive
  // the cache.
  virtual std::unique_ptr<Cache> MakeCache() = 0;

  // Allocates activations for passes of up to `max_batch` tokens. Call it before Forward. Errors:
  // kOutOfMemory with the size.
  virtual Status Reserve(int max_batch) = 0;

  // Allocates the encoder's activations for texts of up to `tokens` tokens; without this call, Encode
  // does it. Errors: kOutOfMemory with the size.
  virtual Status ReserveText(int /*tokens*/) { return Status::Ok(); }

  // Runs the encoder over a whole text and puts its output into the cache, for cross-attention of
  // the decoder's tokens of `sequence`. REQUIRES: cache.StartForward has succeeded for a batch with
  // tokens of `sequence`; call Forward for that batch next. The cache keeps the output as long as
  // the first of those tokens. Errors: kUnsupported for a model without an encoder; kCacheFull with
  // the numbers.
  virtual Status Encode(std::span<const std::int32_t> tokens, SequenceId sequence,
                        Cache& cache) = 0;

  // Puts an output that the caller has computed, such as an image's, instead of the encoder's:
  // states [hidden_size, any number], dense f32 in host memory. The cache keeps the output
  // as long as the token of the batch's item. Errors and requirements are those of Encode; also
  // kInvalidArgument for states of another shape or type.
  virtual Status EncodeStates(const TensorView& states, SequenceId sequence, Cache& cache) = 0;

  // Evaluates tokens [batch] at `positions`. REQUIRES: cache.StartForward has succeeded for
  // the same positions, and Reserve for as many tokens. Keeps each token's final hidden state for
  // Logits. After an error the pass's tokens must be removed from the cache.
  virtual Status Forward(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                         Cache& cache) = 0;

  // Says which tokens of the next Forward have rows in the place of embeddings; without this call none has. What else
  // depends on these tokens takes token 0. The spans live until then.
  virtual void SetInputRows(std::span<const InputRows> rows) = 0;

  // Sets time, row and column [batch, 3] of the tokens of the next Forward, which lives until then; without this call all
  // three are the token's position. REQUIRES: info().three_axes, or none.
  virtual void SetAxes(std::span<const Position> axes) = 0;

  // Computes logits [vocabulary, rows.size()] for the given batch indices of the last Forward.
  virtual Status Logits(std::span<const std::int32_t> rows, float* logits) = 0;

  // ---- Adapters (model/adapter/adapter_bank.h)

  // Takes an adapter, which gets the next number, from 0 on. `file` must outlive the model. Call it before Reserve.
  // Errors: AdapterBank::Add's; kUnsupported for a model with an encoder.
  virtual Status AddAdapter(const AdapterFile& file) = 0;
  // Says which adapters each token of the next Forward or ForwardTexts has [batch]; without this call none has any. The
  // spans live until then. Draft heads have none.
  virtual void SetAdapters(std::span<const AdapterUses> of_token) = 0;

  // ---- Draft heads (model/graph/draft_head.h)

  // Takes the head of `file`: the model's own, or another one that has just a head, and must outlive the
  // model. Caches that are made later have a layer for it. Errors: kUnsupported for a family that has no
  // heads; kNotFound for a file without a head; kCorrupt for one of another size.
  virtual Status LoadHead(const GgufFile& file) = 0;
  virtual bool has_head() const = 0;
  // Returns whether the head has no keys and values of its own, and reads those of the model's layers. All
  // drafts of a round are then at the same position. Caches do not depend on such a head.
  virtual bool head_reads_cache() const { return false; }
  // Says what each row of the next drafts reads: the first tokens of its sequence. Valid until a call changes
  // the cache. REQUIRES: head_reads_cache(). Errors: SequenceView::Set's; kOutOfMemory.
  virtual Status BeginDrafts(Cache& cache, std::span<const SequenceLength> rows) = 0;
  // Sets what the head reads in the next Forward. REQUIRES: has_head(); the spans live until then.
  virtual void SetPrevious(const PreviousStates& previous) = 0;
  // Writes the final states [hidden_size, rows.size()], behind the last norm, of rows of the last Forward or
  // ForwardTexts.
  virtual Status FinalStates(std::span<const std::int32_t> rows, float* states) = 0;
  // Returns the token of each of the head's logits, or nothing if they are those of the vocabulary's tokens in
  // their order. REQUIRES: has_head().
  virtual std::span<const std::int32_t> head_tokens() const = 0;
  // Runs the head alone. tokens [batch], kMaxDraftRows at most, follow tokens with the final states
  // [hidden_size, batch]. Writes logits [vocabulary, batch], or [head_tokens().size(), batch] if the head has
  // tokens of its own, and the states [hidden_size, batch] that take their place for the next token.
  // REQUIRES: has_head(), and the StartForward of CacheOfLayer(cache, layers) has succeeded for these rows, or
  // BeginDrafts if head_reads_cache(). Logits of the last Forward remain.
  static constexpr int kMaxDraftRows = 16;
  virtual Status Draft(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                       const float* states, Cache& cache, float* logits, float* next_states) = 0;

  // Returns the bytes of weights outside the mapped file (repacked matrices).
  virtual std::size_t OwnedWeightBytes() const = 0;

  // Returns the bytes of the activations that Reserve, ReserveText and Encode allocated.
  virtual std::int64_t ActivationBytes() const = 0;

 protected:
  const std::atomic<bool>* interrupt() const { return interrupt_; }

 private:
  const std::atomic<bool>* interrupt_ = nullptr;
};

// Reads the architecture from the file and binds its weights. `file` and `backend` must
// outlive the model. Errors name the file and the tensor or key: kUnsupported for an unknown
// architecture, weight type or setting; kCorrupt for missing tensors or wrong shapes.
Result<std::unique_ptr<Model>> LoadModel(const GgufFile& file, Backend& backend);

// Returns whether the file's architecture is an encoder's (ModelInfo::is_encoder).
bool IsTextEncoder(const GgufFile& file);

// Returns whether the file has a draft head and no layers, for Model::LoadHead.
bool HasOnlyDraftHead(const GgufFile& file);

// Returns Ok if the output matrix has one row for each of `tokens` vocabulary tokens, else kCorrupt
// with both numbers. llama.cpp has the same rule: it takes the number of rows from the vocabulary.
// The embedding may have more rows (mllama's has eight for images).
Status CheckTokenCount(const ModelInfo& info, std::int32_t tokens);

// Returns the architectures that LoadModel knows, in alphabetical order.
std::vector<std::string> SupportedArchitectures();

}  // namespace kvcache
