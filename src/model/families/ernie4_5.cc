// The ernie4_5 and ernie4_5-moe architectures (Baidu's ERNIE 4.5): llama's layers. The second has experts
// in some layers, scored by a softmax and chosen with a bias, beside experts that all tokens use.
//
// Source: Baidu, "ERNIE 4.5 technical report" (2025), and transformers' modeling_ernie4_5_moe.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

Result<ExpertParams> ReadErnieExperts(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  if (experts.weights_scale != 1.0f) return keys.Unsupported("expert_weights_scale");
  experts.selection_bias = true;
  KVCACHE_RETURN_IF_ERROR(ReadDenseAndShared(keys, params, &experts));
  KVCACHE_ASSIGN_OR_RETURN(experts.shared_ffn,
                           keys.IntOrZero("expert_shared_feed_forward_length", 1 << 23));
  KVCACHE_ASSIGN_OR_RETURN(experts.layer_step, keys.IntOr("interleave_moe_layer_step", 1 << 16, 1));
  return experts;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeErnie(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent}};
  if (source.name == "ernie4_5-moe") {
    KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadErnieExperts(keys, params));
  }
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
