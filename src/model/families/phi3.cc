// The phi3 architecture (Phi 3, Phi 3.5 and Phi 4): llama's layers with one matrix for queries, keys and
// values, and one for gate and up. Long contexts divide the rotation's frequencies by a factor for each
// pair (rope_scaling.h).
//
// A window in a file (attention.sliding_window) applies to all layers, as published; llama.cpp ignores it.
//
// Source: Microsoft, "Phi-3 technical report" (2024), and transformers' modeling_phi3.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakePhi3(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  params.fused_gate = true;
  BlockParams blocks;
  KVCACHE_ASSIGN_OR_RETURN(blocks.spans, ReadAttentionSpans(source.keys, params));
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(source.keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
