// The minimax-m2 architecture (MiniMax M2). All of a token's queries are normed together, and so are its
// keys; a part of each head is rotated. Every layer has experts, scored by sigmoids and chosen with a bias.
// Their size is feed_forward_length.
//
// Source: MiniMax, "MiniMax-M2" (2025), and transformers' modeling_minimax_m2.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakeMiniMaxM2(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{.attention = {.norms = QkNorms::kRows}};
  ExpertParams& experts = blocks.experts;
  KVCACHE_ASSIGN_OR_RETURN(experts, ReadExpertParams(keys, params, {.sigmoid = true}));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  if (experts.weights_scale != 1.0f) return keys.Unsupported("expert_weights_scale");
  experts.ffn = params.ffn[0];
  experts.selection_bias = true;
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
