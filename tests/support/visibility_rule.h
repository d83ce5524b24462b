// The rule of kvcache/visibility.h, word by word and independently of VisibleRange, for references.
#pragma once

#include <cstddef>

#include "kvcache/visibility.h"

namespace kvcache::testing {

// Returns whether a query sees the token at a position of its history.
inline bool Sees(const Visibility& visibility, std::size_t query, Position position) {
  const Position own = visibility.positions[query];
  const bool all = !visibility.bidirectional.empty() && visibility.bidirectional[query] != 0;
  if (!all && position > own) return false;
  if (visibility.window > 0 && position <= own - visibility.window) return false;
  return visibility.chunk == 0 || position >= own - own % visibility.chunk;
}

}  // namespace kvcache::testing
