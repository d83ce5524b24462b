#include "model/graph/layer_caches.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/wrapper_cache.h"

namespace kvcache {
namespace {

std::unique_ptr<Cache> MakeOne(const AttentionSpan& span, const ShiftKeysFn& shift_keys,
                               const std::string& keys_identity) {
  return MakeCausalCache({.shift_keys = shift_keys,
                          .window = span.window,
                          .retained_tokens = TwiceTheWindow(span.window),
                          .chunk = span.chunk,
                          .keys_identity = keys_identity});
}

}  // namespace

int TwiceTheWindow(int window) {
  // Windows of files go up to 2^30, so twice a window may not fit into an int.
  const int max = std::numeric_limits<int>::max();
  return window > max / 2 ? max : 2 * window;
}

std::unique_ptr<Cache> MakeLayerCaches(std::span<const AttentionSpan> span_of_layer,
                                       const ShiftKeysFn& shift_keys,
                                       const std::string& keys_identity) {
  std::vector<AttentionSpan> kinds;
  WrapperOptions options;
  for (const AttentionSpan& span : span_of_layer) {
    auto kind = std::ranges::find(kinds, span);
    if (kind == kinds.end()) {
      kind = kinds.insert(kinds.end(), span);
      options.caches.push_back(MakeOne(span, shift_keys, keys_identity));
    }
    options.cache_of_layer.push_back(static_cast<int>(kind - kinds.begin()));
  }
  if (options.caches.size() == 1) return std::move(options.caches.front());
  return MakeWrapperCache(std::move(options));
}

}  // namespace kvcache
