// Alternatives to a draft: the tokens that are nearly as likely as the best one. A model that drafts has their
// logits anyway, and goes on after the best one only.
//
// Thread safety: a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/draft_tree.h"

namespace kvcache {

// Adds to `tree` the alternatives of logit `best`, whose token is there behind `parent`, until `branches` drafts
// follow that or the tree has `most`. `tokens`: the token of each logit; empty: its index. Throws
// std::bad_alloc.
inline void AddAlternatives(std::span<const float> logits, std::span<const std::int32_t> tokens,
                            std::size_t best, std::int32_t parent, int branches, std::size_t most,
                            DraftTree& tree) {
  constexpr float kNearly = 2.0f;  // below the logit of the best token, at most
  const auto token_of = [&](std::size_t i) {
    return tokens.empty() ? static_cast<std::int32_t>(i) : tokens[i];
  };
  for (int added = 1; added < branches && tree.size() < most; ++added) {
    std::size_t next = best;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (!(logits[i] >= logits[best] - kNearly) || i == best) continue;
      if (next != best && logits[i] <= logits[next]) continue;
      if (tree.Find(parent, token_of(i)) < 0) next = i;
    }
    if (next == best) return;
    tree.Add(parent, token_of(next));
  }
}

}  // namespace kvcache
