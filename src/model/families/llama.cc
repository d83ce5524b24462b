// The llama architecture: pre-norm decoder with RoPE, grouped-query attention and SwiGLU, or a
// mixture of SwiGLU experts. Llama 1 to 3, Mistral, Mixtral, TinyLlama and SmolLM files carry this
// name in general.architecture.
//
// Attention has biases if the file has them. A window (attention.sliding_window, Mistral 0.1)
// applies to all layers.
//
// smollm3 (SmolLM 3) is the same without rotation in every fourth layer.
//
// Source: Touvron et al., "LLaMA" (2023); Jiang et al., "Mistral 7B" (2023) and "Mixtral of
// experts" (2024); tensor and key names as in the GGUF specification.
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/block_decoder.h"

namespace kvcache {

Result<std::unique_ptr<Decoder>> MakeLlama(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent},
                     .can_have_head = true};
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadExpertParams(source.keys, params));
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope,
      ReadRope(source.keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  KVCACHE_ASSIGN_OR_RETURN(blocks.spans, ReadAttentionSpans(source.keys, params));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

Result<std::unique_ptr<Decoder>> MakeSmolLm3(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent}};
  for (int i = 0; i < params.layers; ++i) blocks.rotates.push_back((i + 1) % 4 != 0);
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope,
      ReadRope(source.keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
