// What the recurrent cache keeps of the passes of a transaction: the state after each pass, and the
// positions of the last one, whose inputs are kept.
//
//   sequence at 10   pass of 10, 11      pass of 12, 13, 14      Commit keeps 13 tokens
//                    state after 12      state after 15          the state after 13 is computed again
//                                        inputs of 12, 13, 14    from that after 12 and one input
//
// Thread safety: none. Only Reset and Reserve allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/open_transactions.h"
#include "cache/recurrent/recurrent_batch.h"
#include "cache/recurrent/state_table.h"

namespace kvcache {

struct RecurrentRound {
  // A state after a pass, with a reference to its cell.
  struct PassEnd {
    StatePoint state;
    Position first = 0;  // position of the pass's first token
  };
  // The state that a commit keeps.
  struct Kept {
    enum class Kind : std::uint8_t {
      kBegin,    // that from before the transaction
      kPass,     // passes[index].state
      kReplay,   // computed again from `before` and the first `tokens` of `positions`
      kUnknown,  // its inputs are not kept
    };
    Kind kind = Kind::kBegin;
    std::size_t index = 0;
    std::int32_t tokens = 0;
  };

  std::vector<PassEnd> passes;      // ascending
  std::vector<Position> positions;  // of the last pass that began, also if it broke off
  std::int32_t column = 0;          // of the first of them in the batch
  std::int64_t inputs = 0;          // number of the pass that kept their inputs; 0: it did not end

  // Returns what a commit keeps that leaves `length` tokens. `number` is that of the pass whose
  // inputs still exist.
  Kept Find(Position length, std::int64_t number) const {
    std::size_t ends = 0;  // passes that end at or below the length
    while (ends < passes.size() && passes[ends].state.tokens <= length) ++ends;
    const Kept below =
        ends == 0 ? Kept{} : Kept{.kind = Kept::Kind::kPass, .index = ends - 1, .tokens = 0};
    const bool torn = inputs == 0 && !positions.empty();
    if (ends == passes.size()) {
      return torn && positions.front() < length ? Kept{.kind = Kept::Kind::kUnknown} : below;
    }
    if (passes[ends].first >= length) return below;
    if (ends + 1 < passes.size() || inputs == 0 || inputs != number) {
      return {.kind = Kept::Kind::kUnknown};
    }
    Kept kept{.kind = Kept::Kind::kReplay, .index = ends, .tokens = 0};
    for (const Position position : positions) kept.tokens += position < length;
    return kept;
  }
};

// The rounds of all sequences, and whose inputs are kept.
class RecurrentRounds {
 public:
  // Returns the most states that open transactions keep of their passes.
  static int MaxStates(const CacheOptions& options);

  // `transactions` and `states` must outlive this. May throw std::bad_alloc.
  void Reset(const OpenTransactions& transactions, StateTable& states, const CacheOptions& options);

  // Makes room for the passes of a transaction of the sequence. May throw std::bad_alloc.
  void Reserve(SequenceId id, std::size_t passes);

  // Returns kCacheFull if a pass of these sequences would add more states than open transactions may keep:
  // every pass adds one for each of its sequences in a transaction.
  Status CheckStates(std::span<const SequenceId> sequences) const;
  // Notes the tokens of the pass's sequences in a transaction. Returns whether one of them has several.
  bool BeginPass(const Batch& batch, std::span<const RecurrentBatch::Member> members);
  // The pass keeps the inputs of its `tokens` tokens. Those of earlier passes are gone then.
  void KeepInputs(std::int64_t tokens);
  // The inputs of earlier passes are gone.
  void DropInputs() { ++inputs_number_; }
  // Notes the new state of a sequence after a pass from position `first` on. `inputs`: those of its tokens
  // are kept. Does nothing outside of a transaction.
  void EndPass(SequenceId id, Position first, bool inputs);
  // Notes that the tokens of a sequence from `first` on have no state. Does nothing outside of a
  // transaction.
  void BreakOff(SequenceId id, Position first);

  // Returns what a commit keeps that leaves `length` tokens.
  RecurrentRound::Kept Find(SequenceId id, Position length) const {
    return of(id).Find(length, inputs_number_);
  }
  const RecurrentRound& of(SequenceId id) const { return rounds_[Index(id)]; }
  // Returns the tokens of the pass whose inputs are kept.
  std::int64_t inputs_tokens() const { return inputs_tokens_; }
  // Ends the round of a sequence and drops its states.
  void End(SequenceId id);

 private:
  const OpenTransactions* transactions_ = nullptr;
  StateTable* states_ = nullptr;
  std::vector<RecurrentRound> rounds_;  // [sequences]
  std::int32_t round_states_ = 0;       // of all rounds
  std::int32_t max_round_states_ = 0;
  std::int64_t inputs_number_ = 1;  // of the last pass that kept inputs
  std::int64_t inputs_tokens_ = 0;  // its tokens
};

}  // namespace kvcache
