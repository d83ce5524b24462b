// The mistral3 architecture: Mistral Small 3 and Ministral 3. llama's layers; with
// attention.temperature_scale b, the query at position p is multiplied by a factor that sharpens
// attention at far positions (query_factors.h):
//
//   1 + b · ln(1 + floor(p / original context))
//
// Source: Mistral's published inference code (llama_4_scaling); keys as llama.cpp reads them.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakeMistral3(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  BlockParams blocks;
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope,
      ReadRope(source.keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  KVCACHE_ASSIGN_OR_RETURN(const double scale,
                           source.keys.FloatOr("attention.temperature_scale", 0.0));
  if (scale != 0.0) blocks.query_factors = QueryFactors(scale, blocks.rope.original_context, 0);
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
