// The olmo2 and exaone4 architectures (OLMo 2 and 3; EXAONE 4.0). Attention and the feed-forward part read
// the hidden states as they are; their results are normed. Queries and keys are normed too: in olmo2 all
// of a token's heads together, in exaone4 each head.
//
// OLMo 3 is olmo2 with a window in three of four layers; these rotate without scaling. EXAONE 4.0's
// largest model, with 64 layers, has such windows as well, and only layers with a window rotate. In
// smaller files of exaone4 a window has no effect, as in llama.cpp.
//
// Source: OLMo et al., "2 OLMo 2 Furious" (2025); Ai2, "Olmo 3" (2025); LG AI Research, "EXAONE 4.0"
// (2025); and transformers' modules of these names.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

constexpr int kExaoneLayersWithWindows = 64;

}  // namespace

Result<std::unique_ptr<Decoder>> MakeOlmo2(ModelSource& source) {
  constexpr auto kHalves = RopeParams::Pairing::kHalves;
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{
      .attention = {.norms = QkNorms::kRows}, .pre_norms = false, .post_norms = true};
  KVCACHE_ASSIGN_OR_RETURN(blocks.spans, ReadAttentionSpans(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope, ReadRope(keys, params, kHalves, source.weights));
  KVCACHE_ASSIGN_OR_RETURN(const double base, keys.FloatOr("rope.freq_base", 1e4));
  KVCACHE_ASSIGN_OR_RETURN(blocks.window_rope, ReadWindowRope(keys, params.k_dim, kHalves, base));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

Result<std::unique_ptr<Decoder>> MakeExaone4(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{
      .attention = {.norms = QkNorms::kHeads}, .pre_norms = false, .post_norms = true};
  if (params.layers == kExaoneLayersWithWindows) {
    KVCACHE_ASSIGN_OR_RETURN(blocks.spans, ReadAttentionSpans(keys, params));
    for (const AttentionSpan& span : blocks.spans) blocks.rotates.push_back(span.window > 0);
  } else {
    keys.IgnoreAll("attention.sliding_window");
  }
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
