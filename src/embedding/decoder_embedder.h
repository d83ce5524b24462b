// Embeddings of decoders: tokens that several inputs begin with are computed once.
//
// Each inner node of the tree of shared_beginnings.h is a sequence of the engine's cache. What follows it is a copy of
// that sequence, which shares its cells, and more tokens. Inputs of one node are evaluated together, several in a
// pass.
//
// Exactness: a decoder's states do not depend on how tokens are divided into passes, nor on the cells that hold
// earlier ones (docs/design/exactness.md).
//
// Thread safety: as Embedder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "embedding/pooled_embedder.h"
#include "embedding/shared_beginnings.h"
#include "kvcache_engine/engine.h"

namespace kvcache {

class DecoderEmbedder final : public PooledEmbedder {
 public:
  // Errors: Embedder::Open's.
  static Result<std::unique_ptr<Embedder>> Open(const std::string& path,
                                                const EmbedderOptions& options,
                                                std::unique_ptr<Backend> backend);

  std::span<const AdapterInfo> adapters() const override { return engine_->adapters(); }
  std::int64_t MemoryBytes() const override;

 protected:
  Result<std::vector<AdapterUse>> NormalAdapters(AdapterUses uses) const override {
    return engine_->NormalAdapters(uses);
  }
  Result<Pooled> Compute(InputTokens inputs, Pooling pooling, const EmbedOptions& options) override;

 private:
  // Tokens of an input that follow those of a node.
  struct Tail {
    std::size_t input = 0;
    std::size_t begin = 0, end = 0;
    std::int32_t sequence = 0;
    PooledStates states;
  };
  // A call's inputs and what is computed of them.
  struct Call {
    InputTokens inputs;
    const EmbedOptions& options;
    Pooled& pooled;
  };

  DecoderEmbedder() = default;

  // Computes the inputs below a node, whose tokens are in `sequence` (depth 0: in none) with `states`.
  Status RunNode(Call& call, const SharedBeginning& node, int depth, const PooledStates& states);
  Status RunLeaves(Call& call, const SharedBeginning& node, int depth, const PooledStates& states);
  // Evaluates tails, the first one in as many passes as it needs.
  Status RunTails(Call& call, std::vector<Tail>& tails);
  Status RunPass(Call& call, std::vector<Tail>& tails);
  Status TakeStates(std::span<const std::int32_t> rows, PooledStates& states);
  // Takes of a pass's rows those that the tail's pooling needs.
  Status TakeNeeded(std::span<const std::int32_t> rows, Tail& tail);
  // Gives all sequences the adapters of a call.
  Status UseAdapters(AdapterUses uses);
  // Removes what is left of a call.
  Status RemoveAll();
  // Makes `to` a copy of the sequence of a node at `depth`. Returns how many tokens it has: all, or none of a cache that cannot
  // continue there.
  Result<std::size_t> Fork(int depth, std::int32_t to, std::size_t tokens);

  int sequences_ = 0;
  PooledStates fresh_{Pooling::kLast};  // of no tokens
  std::unique_ptr<Engine> engine_;
  std::vector<std::int32_t> tokens_, rows_;  // of a pass
  std::vector<Position> positions_;
  std::vector<SequenceId> sequence_of_;
  std::vector<float> values_;  // states
};

}  // namespace kvcache
