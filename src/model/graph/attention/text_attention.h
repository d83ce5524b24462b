// Bidirectional attention within a whole text, as encoders compute it: each token sees all others.
// A call keeps nothing for the next one except allocated memory for keys and values, in f32.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvcache/backend.h"
#include "model/graph/pass.h"

namespace kvcache {

class TextAttention {
 public:
  // Allocates memory for texts of up to `tokens` tokens with keys and values of `shape`. Errors:
  // kOutOfMemory with the number.
  Status Reserve(KvBackend& backend, const KvShape& shape, std::int64_t tokens);

  std::int64_t bytes() const { return k_ == nullptr ? 0 : layer_.KBytes() + layer_.VBytes(); }

  // out = attention of q over k and v [dim, heads, batch]. The pass's tokens are one text, in
  // order. REQUIRES: Reserve for as many tokens.
  void Run(Pass& pass, const TensorView& q, const TensorView& k, const TensorView& v,
           const AttentionOptions& options, const TensorView& out);

 private:
  LayerKv layer_;
  std::unique_ptr<Buffer> k_, v_;
  std::vector<std::int32_t> history_of_query_;  // [tokens], all 0
  std::vector<std::uint8_t> bidirectional_;     // [tokens], all 1
};

}  // namespace kvcache
