// Embeddings of encoders: several whole inputs in a pass.
//
// Thread safety: as Embedder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "embedding/pooled_embedder.h"
#include "engine/adapters.h"
#include "engine/packed/packed_weights.h"
#include "kvcache/backend.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {

class EncoderEmbedder final : public PooledEmbedder {
 public:
  // REQUIRES: IsTextEncoder(*file). Errors: Embedder::Open's.
  static Result<std::unique_ptr<Embedder>> Open(std::unique_ptr<GgufFile> file,
                                                const EmbedderOptions& options,
                                                std::unique_ptr<Backend> backend);

  std::span<const AdapterInfo> adapters() const override { return adapters_.infos(); }
  std::int64_t MemoryBytes() const override;

 protected:
  Result<std::vector<AdapterUse>> NormalAdapters(AdapterUses uses) const override {
    return adapters_.Normal(uses);
  }
  Result<Pooled> Compute(InputTokens inputs, Pooling pooling, const EmbedOptions& options) override;

 private:
  EncoderEmbedder() = default;

  // Returns how many of the first inputs make a pass.
  std::size_t FirstPass(InputTokens inputs) const;
  // Allocates memory for passes of `tokens` and no more.
  Status Reserve(int tokens);
  Status RunPasses(InputTokens inputs, const EmbedOptions& options, Pooled& pooled);
  Status RunPass(InputTokens inputs, const EmbedOptions& options, std::span<PooledStates> states);
  // Adds the states of `length` tokens of the pass from row `first` on.
  Status TakeStates(std::int32_t first, std::int32_t length, PooledStates& states);

  int pass_tokens_ = 0;
  int reserved_tokens_ = 0;  // of a pass; more than pass_tokens_ for a longer input
  std::unique_ptr<GgufFile> file_;
  std::shared_ptr<packed::ModelPanels> panels_;  // null: none are kept
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Tokenizer> tokenizer_;
  EngineAdapters adapters_;  // their files outlive the encoder
  std::unique_ptr<Model> encoder_;
  std::vector<AdapterUses> of_token_;                  // of a pass
  std::vector<std::int32_t> tokens_, lengths_, rows_;  // of a pass
  std::vector<float> values_;                          // states
};

}  // namespace kvcache
