// The cohere2 architecture (Command R7B and Command A). One layer norm, without a bias, serves attention
// and the feed-forward part, which run side by side. Three of four layers have a window; only these
// rotate. Logits are multiplied by logit_scale.
//
// Source: Cohere, "Command A" (2025), and transformers' modeling_cohere2.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakeCohere2(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params,
                           ReadLayerParams(keys, LayerKinds::kAttention, NormKind::kLayer));
  KVCACHE_ASSIGN_OR_RETURN(const double scale, keys.Float("logit_scale"));
  params.logit_scale = static_cast<float>(scale);
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent},
                     .branches = Branches::kParallel};
  KVCACHE_ASSIGN_OR_RETURN(blocks.spans, ReadAttentionSpans(keys, params));
  for (const AttentionSpan& span : blocks.spans) blocks.rotates.push_back(span.window > 0);
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
