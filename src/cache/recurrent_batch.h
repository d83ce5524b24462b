// Reads the layout of a batch for recurrent layers: the same number of tokens for each sequence,
// side by side and ascending.
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache {

class RecurrentBatch {
 public:
  // May throw std::bad_alloc.
  void Reset(int pass_sequences, int sequences);

  // Reads a batch without changing the one in progress. REQUIRES: CheckBatch accepted it.
  // Errors: kUnsupported for another layout.
  Status Prepare(const Batch& batch);
  // Makes the batch that was last read the one in progress.
  void Begin();
  void End() { current_.Clear(); }

  // The sequences of the batch that was last read, and the first position of each.
  std::span<const SequenceId> prepared_sequences() const { return next_.sequences; }
  Position prepared_first(std::size_t i) const { return next_.first[i]; }

  std::span<const SequenceId> sequences() const { return current_.sequences; }
  std::int32_t tokens_per_sequence() const { return current_.tokens; }
  // Returns the number of tokens of sequence i after the pass.
  Position tokens_after(std::size_t i) const { return current_.last[i] + 1; }

 private:
  struct Layout {
    std::vector<SequenceId> sequences;
    std::vector<Position> first;  // [sequences]: position of its first token in the batch
    std::vector<Position> last;   // [sequences]: position of its last token
    std::int32_t tokens = 0;      // per sequence
    void Clear();
    void Reserve(int count);
  };

  Status Read(const Batch& batch);

  Layout current_;
  Layout next_;
  std::vector<std::uint8_t> seen_;  // [sequences]: is it in the batch? Used by Prepare only
};

}  // namespace kvcache
