// The caches of a model whose layers see back unequally far.
//
//   layers   0 1 2 3 4 5      window 512 in all but every third
//   caches   w w f w w f      two causal caches in a wrapper: w keeps a few windows, f everything
//
// A cache with a window keeps twice its window, so that going back by up to a window's tokens is
// exact without evaluating anything again (kvcache/causal_cache.h: memory).
//
// Thread safety: pure.
#pragma once

#include <memory>
#include <span>

#include "kvcache/cache.h"

namespace kvcache {

// What a layer's queries see, as in CausalOptions; all of it where both are 0.
struct AttentionSpan {
  int window = 0;  // tokens, the query's own included
  int chunk = 0;
  bool operator==(const AttentionSpan&) const = default;
};

// Tokens of each sequence that a cache for a window keeps.
int RetainedTokens(int window);

// A causal cache for all layers of equal reach; in a wrapper if there are several, so that SetLayer
// chooses. Not yet initialised.
std::unique_ptr<Cache> MakeLayerCaches(std::span<const AttentionSpan> span_of_layer,
                                       const ShiftKeysFn& shift_keys);

}  // namespace kvcache
