// The part of an embedder that does not depend on how states are computed: checks of inputs, what follows the
// pooling, and texts.
//
// Thread safety: as Embedder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "embedding/input_texts.h"
#include "embedding/pooled_states.h"
#include "gguf/gguf.h"
#include "kvcache_engine/embedder.h"
#include "model/model.h"

namespace kvcache {

using InputTokens = std::span<const std::vector<std::int32_t>>;

class PooledEmbedder : public Embedder {
 public:
  const EmbedderInfo& info() const override { return info_; }
  Result<std::vector<std::int32_t>> EncodeInput(std::string_view text,
                                                LongInput when_long) const override;
  Result<std::vector<std::int32_t>> EncodePair(std::string_view query, std::string_view document,
                                               LongInput when_long) const override;
  Result<std::vector<std::int32_t>> Tokenize(std::string_view text,
                                             bool with_special) const override;
  Result<std::string> Detokenize(std::span<const std::int32_t> tokens) const override;
  std::string Piece(std::int32_t token) const override;
  Result<Embeddings> Embed(InputTokens inputs, const EmbedOptions& options) override;
  Result<Ranks> Rank(InputTokens pairs, const EmbedOptions& options) override;

 protected:
  // The states of a call's inputs.
  struct Pooled {
    std::vector<PooledStates> states;  // [inputs]
    std::int64_t computed_tokens = 0;
  };

  // Takes what the file says. Call it once, with the model and the tokenizer, which must outlive the embedder.
  // Errors name the key or what the file lacks.
  Status Describe(const GgufFile& file, Model& model, const Tokenizer& tokenizer,
                  const EmbedderOptions& options, int max_input_tokens);

  // Computes the states of checked inputs, for a pooling that is not kRank. Of `options` only `adapters`, which are normal,
  // `interrupt` and `between_passes` have an effect. May throw std::bad_alloc. After an error a later call may succeed.
  virtual Result<Pooled> Compute(InputTokens inputs, Pooling pooling,
                                 const EmbedOptions& options) = 0;

  // Returns uses with ascending numbers and no scale of 0. Errors: Engine::NormalAdapters'.
  virtual Result<std::vector<AdapterUse>> NormalAdapters(AdapterUses uses) const = 0;

  Model& model() const { return *model_; }

 private:
  // Returns the states' pooling: that of the file, or that of the states which a reranker's head reads.
  Pooling StatesPooling() const;
  Status CheckInputs(InputTokens inputs, std::size_t first) const;
  // The same as Compute, which gets each of equal inputs once.
  Result<Pooled> ComputeDistinct(InputTokens inputs, const EmbedOptions& options);
  Result<Embeddings> EmbedChecked(InputTokens inputs, const EmbedOptions& options);
  Result<Ranks> RankChecked(InputTokens pairs, const EmbedOptions& options);
  // Returns the head's values for vectors [hidden size, any number].
  Result<std::vector<float>> HeadValues(std::span<const float> vectors, AdapterUses adapters);

  EmbedderInfo info_;
  Model* model_ = nullptr;
  const Tokenizer* tokenizer_ = nullptr;
  std::unique_ptr<InputTexts> texts_;
};

}  // namespace kvcache
