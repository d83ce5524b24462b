// A batch as recurrent layers need it: the same number of tokens for each sequence, side by side
// and ascending.
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

  // Reads a batch that CheckBatch accepted, without touching the one in progress.
  // Errors: kUnsupported, with what is wrong about the layout.
  Status Prepare(const Batch& batch);
  // The batch last read is in progress.
  void Begin();
  void End() { current_.Clear(); }

  // Of the batch last read: its sequences, and each one's first position.
  std::span<const SequenceId> prepared_sequences() const { return next_.sequences; }
  Position prepared_first(std::size_t i) const { return next_.first[i]; }

  std::span<const SequenceId> sequences() const { return current_.sequences; }
  std::int32_t tokens_per_sequence() const { return current_.tokens; }
  // How many tokens sequence i has after the pass.
  Position tokens_after(std::size_t i) const { return current_.last[i] + 1; }

 private:
  struct Layout {
    std::vector<SequenceId> sequences;
    std::vector<Position> first;  // each one's positions in the batch
    std::vector<Position> last;
    std::int32_t tokens = 0;  // of each
    void Clear();
    void Reserve(int count);
  };

  Status Read(const Batch& batch);

  Layout current_;
  Layout next_;
  std::vector<std::uint8_t> seen_;  // [sequences]: scratch of Prepare
};

}  // namespace kvcache
