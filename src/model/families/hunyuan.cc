// The hunyuan-dense and hunyuan-moe architectures (Tencent's Hunyuan). Each head's query and key is normed
// after its rotation. In hunyuan-moe every layer has experts, whose size is feed_forward_length, and one
// expert that all tokens use.
//
// The norm's weights make a cached key depend on its position in a way that a rotation does not change, so
// a range in the middle of a text cannot be removed.
//
// Source: Tencent, "Hunyuan-A13B" (2025), and transformers' modeling_hunyuan_v1_dense and _moe.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

Result<ExpertParams> ReadHunyuanExperts(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  if (experts.weights_scale != 1.0f) return keys.Unsupported("expert_weights_scale");
  experts.ffn = params.ffn[0];
  KVCACHE_ASSIGN_OR_RETURN(experts.shared_ffn,
                           keys.IntOr("expert_shared_feed_forward_length", 1 << 23, params.ffn[0]));
  // The size above counts all shared experts.
  keys.Ignore("expert_shared_count");
  return experts;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeHunyuan(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .norms = QkNorms::kRotatedHeads}};
  if (source.name == "hunyuan-moe") {
    KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadHunyuanExperts(keys, params));
  }
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
