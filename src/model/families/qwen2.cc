// The qwen2 architecture (Qwen 1.5, 2 and 2.5): llama's layers with biases on q, k and v. RoPE
// rotates pairs from the two halves of a head instead of neighbouring values.
//
// A window in a file (attention.sliding_window) has no effect: the published models state one, but
// switch it off with use_sliding_window.
//
// seed_oss (ByteDance's Seed-OSS) has the same layers. Its feed-forward norm is named post_attention_norm, and
// the output of attention may have a bias.
//
// Source: Yang et al., "Qwen2 technical report" (2024); transformers' modeling_seed_oss.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakeQwen2(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  BlockParams blocks{.attention = {.bias = Bias::kRequired}, .can_have_head = true};
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(source.keys, params, RopeParams::Pairing::kHalves, source.weights));
  source.keys.Ignore("attention.sliding_window");
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

Result<std::unique_ptr<Decoder>> MakeSeedOss(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent},
                     .ffn_norm = "post_attention_norm"};
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(source.keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
