// A model file made ready to run: the file, the backend, the weights, the tokenizer and a cache
// for a number of sequences.
//
// This is the level of forward passes: batches of tokens of any sequences, and logits. One
// sequence as a growing text is session.h; the generation loop is generate.h.
//
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/backend.h"
#include "kvcache/cache.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/status.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {

struct EngineOptions {
  int threads = 0;  // of the processor's backend; 0: one per core
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int context = 0;  // tokens per sequence; 0: the model's own, at most kDefaultContext
  int max_sequences = 1;
  int prefill_chunk = 512;  // tokens of the largest forward pass
  // Of recurrent states, after passes: what a sequence of such a model can go back to.
  CheckpointOptions checkpoints{};
};

// Contexts that nobody asked for stay below this: a cache is memory.
inline constexpr int kDefaultContext = 8192;

// An image: what a vision model made of it, for the text model's layers that look at images.
struct EngineImage {
  std::int32_t index = 0;  // of its token in the batch, its sequence's first one there
  TensorView states;       // [hidden_size, any number], dense f32
  std::uint64_t hash = 0;  // of what it shows
};

// The tokens of one forward pass, in any order, for any sequences: three arrays [batch]. What
// drafts leave behind, cache().AcceptDrafts says.
struct EngineBatch {
  std::span<const std::int32_t> tokens;
  std::span<const Position> positions;
  std::span<const SequenceId> sequences;
  std::span<const EngineImage> images{};
  std::span<const std::int32_t> parents{};  // [batch] or empty: drafts, as in Batch
  // Forward ends early, with kCancelled, once *interrupt is true; null: never.
  const std::atomic<bool>* interrupt = nullptr;
};

class Engine {
 public:
  // Opens a GGUF file to run on `backend`; null: this machine's processor. Errors name the file and
  // what is wrong with it, or the option.
  static Result<std::unique_ptr<Engine>> Open(const std::string& path, const EngineOptions& options,
                                              std::unique_ptr<Backend> backend = nullptr);

  const GgufFile& file() const { return *file_; }
  const ModelInfo& info() const { return model_->info(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const EngineOptions& options() const { return options_; }  // with defaults filled in
  int context() const { return options_.context; }
  int max_batch() const { return options_.prefill_chunk; }
  Cache& cache() { return *cache_; }
  Model& model() { return *model_; }

  // One forward pass of at most max_batch() tokens. In a model with recurrent layers the batch
  // gives each of its sequences the same number of tokens, side by side and ascending; it is
  // refused otherwise (kUnsupported), not split, as Logits reads what one pass left. An image is
  // seen by its token and those after it, until the next one: the image's token must be the first
  // of its sequence in the pass, or what stands before would see another image in another cut.
  // Errors: a token that is not in the vocabulary, those of Cache::StartForward and of the kernels.
  // After an error in the pass itself (not before it) the batch's sequences must be removed from
  // its first position on.
  Status Forward(const EngineBatch& batch);

  // Does the model read a text as a whole first? Then a sequence begins with Encode.
  bool has_encoder() const { return info().decoder_start >= 0; }

  // Lets the encoder read `tokens`, at most context() of them, for the empty sequence `sequence`,
  // and evaluates its first token, info().decoder_start, at position 0. Errors as in Forward;
  // kUnsupported without an encoder.
  Status Encode(std::span<const std::int32_t> tokens, SequenceId sequence,
                const std::atomic<bool>* interrupt = nullptr);

  // Logits [vocabulary, rows.size()] of batch indices of the last Forward.
  Status Logits(std::span<const std::int32_t> rows, float* logits) {
    return model_->Logits(rows, logits);
  }

 private:
  Engine() = default;

  Status CheckTokens(std::span<const std::int32_t> tokens) const;
  Status CheckImages(const EngineBatch& batch) const;

  EngineOptions options_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Cache> cache_;
  std::vector<MultimodalItem> items_;  // scratch
};

}  // namespace kvcache
