// The rule by which drafts are accepted.
//
// A token is drawn from the model's own distribution, as without drafts. If it is a draft, the row of that
// draft has the distribution of the next token, and so on. What drafters propose has no influence on what
// is drawn, only on how many tokens one pass gives: the distribution is the model's for any drafter.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "kvcache/draft_tree.h"

namespace kvcache {

// What a draw says: a token, and whether the text goes on after it.
struct DrawnToken {
  std::int32_t token = -1;
  bool goes_on = true;
};

struct Verdict {
  std::int32_t last = -1;  // the last draft whose row a token was drawn from; -1: none
  int drawn = 0;           // tokens
  int accepted = 0;  // drafts that were drawn; an end of the text counts, and its row stays unused
  bool goes_on = true;
};

// Calls draw(draft) for the row of the text's last token (-1), and then for those of accepted drafts. Stops
// at a draw that is no draft or ends the text.
template <class F>
Verdict JudgeDrafts(const DraftTree& tree, F&& draw) {
  Verdict verdict;
  while (true) {
    const DrawnToken drawn = draw(verdict.last);
    ++verdict.drawn;
    verdict.goes_on = drawn.goes_on;
    const std::int32_t next = tree.Find(verdict.last, drawn.token);
    if (next < 0) return verdict;
    ++verdict.accepted;
    if (!drawn.goes_on) return verdict;
    verdict.last = next;
  }
}

}  // namespace kvcache
