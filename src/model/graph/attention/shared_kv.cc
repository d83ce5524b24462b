#include "model/graph/attention/shared_kv.h"

#include <string_view>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// Returns the last layer before `end` with the span, or -1.
int LastWith(std::span<const AttentionSpan> spans, const AttentionSpan& span, int end) {
  int layer = end - 1;
  while (layer >= 0 && spans[static_cast<std::size_t>(layer)] != span) --layer;
  return layer;
}

}  // namespace

Result<SharedKv> SharedKv::Read(KeyReader& keys, const LayerParams& params,
                                std::span<const AttentionSpan> spans, int otherwise) {
  constexpr std::string_view kShared = "attention.shared_kv_layers";
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t shared,
                           keys.file().GetIntOr(keys.Key(kShared), otherwise));
  keys.Ignore(kShared);
  if (shared < 0 || shared >= params.layers) {
    return Corrupt(StrCat(keys.Key(kShared), " is ", shared, "; must be 0 to ", params.layers - 1));
  }
  SharedKv kv;
  kv.own = params.layers - static_cast<int>(shared);
  for (int layer = 0; layer < params.layers; ++layer) {
    const int source =
        kv.HasOwn(layer) ? layer : LastWith(spans, spans[static_cast<std::size_t>(layer)], kv.own);
    kv.sources.push_back(source);
    if (source >= 0) continue;
    return Corrupt(StrCat(keys.Key(kShared), " is ", shared, ": layer ", layer,
                          " needs an earlier layer with the same window that has keys and values"));
  }
  return kv;
}

void SharedKv::IgnoreTensors(WeightReader& reader, const std::string& prefix) {
  for (const char* const unused : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}) {
    reader.Ignore(prefix + unused);
  }
}

}  // namespace kvcache
