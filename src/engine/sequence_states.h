// The model's final states of each sequence's last tokens, which a draft head reads with the next token.
// A sequence goes back over at most as many tokens after a round of drafts.
//
// Thread safety: that of the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache_engine/engine.h"
#include "model/model.h"

namespace kvcache {

class SequenceStates {
 public:
  // Throws std::bad_alloc.
  SequenceStates(int sequences, int hidden_size, int max_batch);

  // Returns, for each token of a pass, the state of the token before it; valid until the next call.
  PreviousStates Before(const EngineBatch& batch);
  // Keeps the states of the pass's last tokens. Errors: the backend's.
  Status Keep(const EngineBatch& batch, Model& model);
  // Says that the sequence has another text.
  void Forget(SequenceId sequence);
  // Says that `to` has the text of `from`.
  void Copy(SequenceId from, SequenceId to);
  std::int64_t bytes() const { return static_cast<std::int64_t>(rows_.size() * sizeof(float)); }
  // Returns the state [hidden_size] of the sequence's token at `position`; null if it is not known.
  const float* Find(SequenceId sequence, Position position) const;

 private:
  static constexpr int kKept = 17;  // a current token and its drafts

  bool Knows(SequenceId sequence) const {
    return Index(sequence) >= 0 && static_cast<std::size_t>(Index(sequence)) < counts_.size();
  }
  // Returns the row, or -1.
  std::int32_t RowOf(SequenceId sequence, Position position) const;

  std::int64_t hidden_size_;
  std::vector<float> rows_;             // [hidden_size, kKept, sequences]
  std::vector<Position> positions_;     // [kKept, sequences]
  std::vector<int> counts_;             // [sequences] rows in use
  std::vector<std::int32_t> last_;      // [sequences] scratch of Before: the last row in the batch
  std::vector<std::int32_t> of_token_;  // [max_batch]
  std::vector<std::int32_t> wanted_;    // scratch of Keep: batch indices
};

}  // namespace kvcache
