// What the recurrent cache keeps of the passes of a transaction: the state after each pass, and the
// positions of the last one, whose inputs are kept.
//
//   sequence at 10   pass of 10, 11      pass of 12, 13, 14      Commit keeps 13 tokens
//                    state after 12      state after 15          the state after 13 is computed again
//                                        inputs of 12, 13, 14    from that after 12 and one input
//
// Thread safety: none. Only Begin allocates.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace kvcache
