// Keys and values that do not depend on position: an encoder's output or an image, read by
// cross-attention. Each sequence has one such output, or none.
//
// Put may have any number of tokens up to the room; each layer of a pass the same. What it
// stores replaces the sequence's output and stays until the sequence drops the token that it
// came with: the newest multimodal item of the batch, or else the batch's first position.
//
// A sequence cannot go back to where it saw an output that another has replaced: PrepareRestore
// then says the token of the first one that was.
//
//   cache->StartForward(batch, mode);
//   for (SequenceId s : sequences with a new image) { encoder->SetSequence(s); Put(k, v); }
//   backend.Attention(storage, q, cache->Visible(), …);   all sequences of the batch at once
//
// Visible() lets each query see all of its sequence's output, and nothing where there is none.
// Get() is the output of one sequence, without a mask.
//
// Thread safety and errors: as in cache.h. Design: docs/design/kinds.md.
#pragma once

#include <memory>

#include "kvcache/cache.h"

namespace kvcache {

struct EncoderOptions {
  int max_tokens = 0;  // of the longest output; 0: Init's capacity
};

class EncoderCache : public Cache {
 public:
  // Which sequence Put and Get speak of. A pass begins with that of the newest multimodal item,
  // or else with the batch's first. kInvalidArgument for a sequence outside of the batch.
  virtual Status SetSequence(SequenceId sequence) = 0;

  // Does the sequence have an output?
  virtual bool EncoderCached(SequenceId sequence) const = 0;
};

std::unique_ptr<EncoderCache> MakeEncoderCache(const EncoderOptions& options = {});

}  // namespace kvcache
