// The tokens of one forward pass.
//
// Thread safety: values; as thread-safe as a std::vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/types.h"

namespace kvcache {

// A sequence and a number of its tokens.
struct SequenceLength {
  SequenceId sequence{};
  Position length = 0;
};

// An image or sound in the batch. Its tokens start at batch index `index`.
struct MultimodalItem {
  std::int32_t index = 0;
  std::uint64_t hash = 0;
};

// A view of the tokens of one forward pass, in any order, for any sequences. The caller owns the
// arrays; they must stay valid until StartForward returns.
struct Batch {
  std::span<const Position> positions;    // [batch]
  std::span<const SequenceId> sequences;  // [batch]
  std::span<const MultimodalItem> items{};
  // [batch], or empty. If given, every token of the batch is a draft:
  //   - Token i follows token parents[i], which has a lower index and the same sequence.
  //     -1 means that it follows the last token of its sequence. Its position is the next one.
  //   - Tokens with the same parent are alternatives. A token sees its sequence and its own
  //     ancestors, and no other draft.
  //   - When the pass ends, a sequence keeps only the drafts that AcceptDrafts named. This also
  //     holds for a sequence without alternatives.
  //   - A batch of drafts has no items. A window evicts what it would evict for one token at the
  //     end of the sequence.
  std::span<const std::int32_t> parents{};
  std::size_t size() const { return positions.size(); }
};

// Builds a Batch without loops in the caller, and owns its arrays:
//
//   BatchBuilder batch;
//   batch.Add(first, 0, 5).Add(second, 7);         positions 0 … 4 of one, 7 of the other
//   cache->StartForward(batch.view(), ForwardMode::kCompute);
class BatchBuilder {
 public:
  // Appends tokens at positions [first, first + count) of the sequence.
  BatchBuilder& Add(SequenceId sequence, Position first, std::int32_t count = 1) {
    for (std::int32_t i = 0; i < count; ++i) {
      positions_.push_back(first + i);
      sequences_.push_back(sequence);
    }
    return *this;
  }
  // Removes all tokens and keeps the memory for the next pass.
  void Clear() {
    positions_.clear();
    sequences_.clear();
  }
  // Valid until the next Add or Clear, and as long as the builder.
  Batch view() const { return {.positions = positions_, .sequences = sequences_}; }

 private:
  std::vector<Position> positions_;
  std::vector<SequenceId> sequences_;
};

}  // namespace kvcache
