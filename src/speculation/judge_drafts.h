// The rule by which drafts are accepted.
//
// A token is drawn from the model's own distribution, as without drafts. If it is a draft, the row of that
// draft has the distribution of the next token, and so on. What drafters propose has no influence on what
// is drawn, only on how many tokens one pass gives: the distribution is the model's for any drafter.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache {

// What a draw says: a token, and whether the text goes on after it.
struct DrawnToken {
  std::int32_t token = -1;
  bool goes_on = true;
};

struct Verdict {
  // Tokens: from the row of the text's last token, and of the drafts before the last one drawn.
  int drawn = 0;
  int accepted = 0;  // drafts that were drawn; an end of the text counts, and its row stays unused
  bool goes_on = true;
};

// Calls draw(index) for the row of the text's last token (0), and then for those of accepted drafts. Stops
// at a draw that is no draft or ends the text.
template <class F>
Verdict JudgeDrafts(std::span<const std::int32_t> drafts, F&& draw) {
  Verdict verdict;
  while (true) {
    const auto row = static_cast<std::size_t>(verdict.drawn);
    const DrawnToken drawn = draw(row);
    ++verdict.drawn;
    verdict.goes_on = drawn.goes_on;
    if (row == drafts.size() || drafts[row] != drawn.token) return verdict;
    ++verdict.accepted;
    if (!drawn.goes_on) return verdict;
  }
}

}  // namespace kvcache
