// The final hidden states of each sequence's last tokens, which a draft head reads with the next token. A round of
// drafts removes at most as many tokens.
//
// The hidden states of the latest ends of chunks (kMarkedTokens) are kept too, because a store divides texts there.
//
// Thread safety: that of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/draft_rates.h"
#include "kvcache_engine/engine.h"
#include "model/model.h"

namespace kvcache {

class HiddenStates {
 public:
  static constexpr Position kMarkedTokens = 512;  // the chunks of PrefixKeys

  // Throws std::bad_alloc.
  HiddenStates(int sequences, int hidden_size, int max_batch);

  // Returns, for each token of a pass, the state of the token before it; valid until the next call.
  PreviousStates Before(const EngineBatch& batch);
  // Keeps the states of the pass's last tokens, and of earlier ones as far as there is room. Errors: the
  // backend's.
  Status Keep(const EngineBatch& batch, Model& model);
  // Says that the sequence has another text.
  void Forget(SequenceId sequence);
  // Says that the sequence has another text of `length` tokens. `last` is the state of its last token; empty
  // if it is not known.
  void Restored(SequenceId sequence, Position length, std::span<const float> last);
  // Says that `to` has the text of `from`.
  void Copy(SequenceId from, SequenceId to);
  std::int64_t bytes() const { return static_cast<std::int64_t>(rows_.size() * sizeof(float)); }
  // Returns the state [hidden_size] of the sequence's token at `position`; null if it is not known.
  const float* Find(SequenceId sequence, Position position) const;
  // Returns the state of the last of the sequence's first `length` tokens; empty if it is not known.
  std::span<const float> Last(SequenceId sequence, Position length) const;
  std::int64_t hidden_size() const { return hidden_size_; }

 private:
  // A current token and its drafts, and the token before them: a round that fails leaves its state.
  static constexpr int kKept = 18;
  static_assert(kKept >= DraftRates::kMax + 2);
  static constexpr int kMarked = 4;  // ends of chunks, besides those of a pass

  // A ring of rows of a sequence.
  struct Ring {
    std::int32_t begin = 0;  // the first row of the sequence
    int size = 0;
    int next = 0;  // where the next row goes
  };

  bool Knows(SequenceId sequence) const {
    return Index(sequence) >= 0 && static_cast<std::size_t>(Index(sequence)) < last_.size();
  }
  std::size_t FirstOf(SequenceId sequence) const {
    return static_cast<std::size_t>(Index(sequence)) * static_cast<std::size_t>(rows_of_each_);
  }
  // Returns the row, or -1.
  std::int32_t RowOf(SequenceId sequence, Position position) const;
  // Forgets the rows of a sequence from `position` on.
  void ForgetFrom(SequenceId sequence, Position position);
  // Writes the states of batch indices to a ring, the last one at its end. Errors: the backend's.
  Status Write(Ring& ring, std::span<const std::int32_t> wanted, const EngineBatch& batch,
               Model& model);

  std::int64_t hidden_size_;
  std::int32_t rows_of_each_;           // of a sequence: kKept, and those of chunks' ends
  std::vector<float> rows_;             // [hidden_size, rows_of_each_, sequences]
  std::vector<Position> positions_;     // [rows_of_each_, sequences]; -1: not in use
  std::vector<Ring> latest_;            // [sequences]
  std::vector<Ring> marked_;            // [sequences]
  std::vector<std::int32_t> last_;      // [sequences] scratch: the last row in the batch
  std::vector<std::int32_t> of_token_;  // [max_batch]
  std::vector<std::int32_t> wanted_;    // scratch of Keep: batch indices
};

// Returns the final hidden state of the last of the sequence's first `length` tokens. It is empty if it is not known,
// and without a draft head.
inline std::span<const float> LastState(Engine& engine, SequenceId sequence, Position length) {
  const HiddenStates* const states = engine.states();
  return states == nullptr ? std::span<const float>() : states->Last(sequence, length);
}

}  // namespace kvcache
