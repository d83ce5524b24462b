// The glm4 and glm4moe architectures (GLM 4, and GLM 4.5 to 4.7). A part of each head is rotated.
//
// glm4 norms the results of attention and of the feed-forward part too, and has one matrix for gate and
// up. glm4moe has experts in all layers but the first ones: sigmoids score them, a bias takes part in the
// choice, and one expert serves all tokens. Its feed-forward norm is named post_attention_norm. Blocks
// behind the last layer are a draft head.
//
// Source: Zeng et al., "GLM-4.5" (2025), and transformers' modeling_glm4 and modeling_glm4_moe.
#include <algorithm>
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakeGlm4(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  params.fused_gate = true;
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent}, .post_norms = true};
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope,
      ReadRope(source.keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

Result<std::unique_ptr<Decoder>> MakeGlm4Moe(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent},
                     .ffn_norm = "post_attention_norm",
                     .can_have_head = true};
  if (source.weights.Has("blk.0.attn_q_norm.weight")) blocks.attention.norms = QkNorms::kHeads;
  ExpertParams& experts = blocks.experts;
  KVCACHE_ASSIGN_OR_RETURN(
      experts,
      ReadExpertParams(keys, params, {.sigmoid = true, .groups = true, .renormalize = false}));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  if (!keys.Has("expert_gating_func")) experts.gate = RouterOptions::Gate::kSigmoid;
  experts.selection_bias = true;
  experts.group_best = std::min(2, experts.count / experts.groups);
  KVCACHE_RETURN_IF_ERROR(ReadDenseAndShared(keys, params, &experts));
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
