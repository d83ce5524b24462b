// Keys and values that do not depend on position, for cross-attention: the output of an encoder,
// such as an image. Each sequence has one output, or none.
//
// Put takes 1 to max_tokens tokens, the same number for each layer of a pass. It replaces the
// sequence's output. The output belongs to one token of the batch: the newest multimodal item of
// its sequence or, without an item, the lowest position of its sequence. When the sequence drops
// that token, it drops the output.
//
// A sequence cannot go back to a position that saw an output which was replaced since. In that
// case PrepareRestore returns the position of the token that the first replaced output belongs to.
//
//   cache->StartForward(batch, mode);
//   for (SequenceId s : sequences with a new image) { encoder->SetSequence(s); Put(k, v); }
//   backend.Attention(storage, q, cache->Visible(), …);   all sequences of the batch at once
//
// Visible() lets each query see all of its sequence's output; without an output it sees nothing.
// Get() returns the output of one sequence, without a mask.
//
// Thread safety and errors: as in cache.h. Design: docs/design/kinds.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvcache/cache.h"

namespace kvcache {

struct EncoderOptions {
  int max_tokens = 0;           // of the longest output; 0: the capacity given to Init
  std::string keys_identity{};  // as in CausalOptions
};

class EncoderCache : public Cache {
 public:
  // Selects the sequence for Put and Get. A pass begins with the sequence of the newest multimodal
  // item or, without items, of the batch's first token. Errors: kInvalidArgument outside a pass or
  // for a sequence outside the batch.
  virtual Status SetSequence(SequenceId sequence) = 0;

  // Returns whether the sequence has an output; false for an unknown sequence.
  virtual bool EncoderCached(SequenceId sequence) const = 0;

  // Returns Ok if the snapshot has an output of `tokens` tokens, with keys and values of the shape layers[i]
  // in each layer i, and of no other layer: bytes that were imported may be those of any output. Errors:
  // kCorrupt if not; kInvalidArgument for a snapshot of another cache.
  virtual Status CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                             std::span<const KvShape> layers) const = 0;

 protected:
  // Adds itself to the capabilities.
  explicit EncoderCache(CacheCapabilities capabilities = {})
      : Cache((capabilities.encoder = this, capabilities)) {}
};

// Returns a cache that is not initialised. Init reports contradictory options.
std::unique_ptr<EncoderCache> MakeEncoderCache(const EncoderOptions& options = {});

}  // namespace kvcache
