// A request's drafts in a scheduler: who proposes them, and what is in the pass.
//
// Thread safety: that of the scheduler.
#pragma once

#include <cstdint>
#include <memory>

#include "kvcache/drafter.h"
#include "kvcache/types.h"

namespace kvcache {

struct JobDrafts {
  std::shared_ptr<Drafter> drafter{};  // null: it failed
  int fixed = -1;                      // drafts of every round; -1: as many as pay
  int branches = 1;                    // alternatives at one place, at most
  DraftRates* rates = nullptr;  // of all drafters of the scheduler's own kind; null: another kind
  bool begun = false;
  std::size_t told = 0;     // tokens of the request that the drafter knows
  std::int32_t shifts = 0;  // of the context, when it learned of them
  int wanted = 0;           // drafts for the next pass
  DraftTree tree{};         // proposed for it
  // The round's verdict.
  Position kept = 0;       // rows of the pass that samples came from
  std::int32_t last = -1;  // the last draft of them; -1: none
  bool goes_on = true;
};

}  // namespace kvcache
