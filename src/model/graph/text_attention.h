// Attention within a text that is there as a whole, each token seeing all others: what encoders do.
// Nothing is remembered from call to call but the room, in f32.
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
  // Room for texts of up to `tokens` tokens, all of whose layers keep `shape`. kOutOfMemory with
  // the number.
  Status Reserve(KvBackend& backend, const KvShape& shape, std::int64_t tokens);

  // out = attention of q over k and v, heads of the pass's tokens: of one text, in order. REQUIRES:
  // room for them.
  void Run(Pass& pass, const TensorView& q, const TensorView& k, const TensorView& v,
           const AttentionOptions& options, const TensorView& out);

 private:
  LayerKv layer_;
  std::unique_ptr<Buffer> k_, v_;
  std::vector<std::int32_t> history_of_query_;  // [tokens], all 0
  std::vector<std::uint8_t> bidirectional_;     // [tokens], all 1
};

}  // namespace kvcache
