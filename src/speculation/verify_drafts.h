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

// What a draw says: a token, and whether the text continues after it.
struct DrawnToken {
  std::int32_t token = -1;
  bool continues = true;
};

struct VerifiedDrafts {
  // Tokens: from the row of the text's last token, and of the drafts before the last one drawn.
  int drawn = 0;
  int accepted = 0;  // drafts that were drawn; an end of the text counts, and its row stays unused
  bool continues = true;
};

// Calls draw(index) for the row of the text's last token (0), and then for those of accepted drafts. Stops
// at a draw that is no draft or ends the text.
template <class F>
VerifiedDrafts VerifyDrafts(std::span<const std::int32_t> drafts, F&& draw) {
  VerifiedDrafts verified;
  while (true) {
    const auto row = static_cast<std::size_t>(verified.drawn);
    const DrawnToken drawn = draw(row);
    ++verified.drawn;
    verified.continues = drawn.continues;
    if (row == drafts.size() || drafts[row] != drawn.token) return verified;
    ++verified.accepted;
    if (!drawn.continues) return verified;
  }
}

}  // namespace kvcache
