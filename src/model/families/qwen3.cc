// The qwen3 and qwen3moe architectures. Each head's query and key is normed before RoPE; there are
// no biases; the head size does not depend on the hidden size. In qwen3moe every layer's
// feed-forward part is a mixture of experts. A reranker's file has cls.output.
//
// Source: Yang et al., "Qwen3 technical report" (2025).
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakeQwen3(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  params.pooled_head = PooledHeadKind::kQwen3;
  source.keys.Ignore("classifier.output_labels");
  BlockParams blocks{.attention = {.norms = QkNorms::kHeads}, .can_have_head = true};
  if (source.name == "qwen3moe") {
    KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadExpertParams(source.keys, params));
  }
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(source.keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
