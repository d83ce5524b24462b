// Creates the caches of a model whose layers have different attention spans.
//
//   layers   0 1 2 3 4 5      window 512 in all layers except every third
//   caches   w w f w w f      two causal caches in a wrapper: w retains two windows, f every token
//
// A cache with a window retains twice its window (TwiceTheWindow), not the default of
// CausalOptions::retained_tokens, which is about one window.
//
// Thread safety: pure.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kvcache/cache.h"

namespace kvcache {

// The tokens that a layer's queries see, as in CausalOptions. Both 0: all tokens.
struct AttentionSpan {
  int window = 0;  // tokens, the query's own included
  int chunk = 0;   // tokens of a chunk; a query sees those of its own
  bool operator==(const AttentionSpan&) const = default;
};

// Returns the retained_tokens (kvcache/causal_cache.h) of every model's cache with this window, at
// most the largest int; 0 (all) for window 0. With twice the window, a sequence can go back by up to
// one window exactly: dropping an answer that is no longer than the window, for example, does not
// make the session evaluate any token again.
int TwiceTheWindow(int window);

// Makes one causal cache per distinct span, shared by all layers with that span. Several caches are
// put into a wrapper, whose SetLayer selects the cache. The result is not initialised.
// `keys_identity`: as in CausalOptions.
std::unique_ptr<Cache> MakeLayerCaches(std::span<const AttentionSpan> span_of_layer,
                                       const ShiftKeysFn& shift_keys,
                                       const std::string& keys_identity = {});

}  // namespace kvcache
