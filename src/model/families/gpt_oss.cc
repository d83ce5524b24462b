// The gpt-oss architecture. Every feed-forward part is a mixture of experts with biases and a
// clamped gate. Attention has biases on all four matrices, a window in every other layer, and a
// sink: a learned logit in each head's softmax that belongs to no key.
//
//   gate = min(Wgate h + b, 7),  up = Wup h + b within ±7
//   out  = Wdown (gate · sigmoid(1.702 gate) × (up + 1)) + b
//
// A token's experts are weighted by the softmax over their logits. Positions are scaled by YaRN.
// Its ramp runs between whole pairs, as in all families here and in llama.cpp; the published code
// does not round the ramp's ends.
//
// Source: OpenAI, "gpt-oss-120b & gpt-oss-20b model card" (2025), and the code published with it.
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

constexpr float kGateLimit = 7.0f;
constexpr float kGateAlpha = 1.702f;

}  // namespace

Result<std::unique_ptr<Decoder>> MakeGptOss(ModelSource& source) {
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(source.keys));
  // The norm after attention is the feed-forward part's norm.
  BlockParams blocks{
      .attention = {.bias = Bias::kRequired, .output_bias = Bias::kRequired, .sinks = true},
      .ffn_norm = "post_attention_norm"};
  KVCACHE_ASSIGN_OR_RETURN(blocks.spans, ReadAttentionSpans(source.keys, params));
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadExpertParams(source.keys, params));
  if (blocks.experts.count == 0) {
    return Corrupt(StrCat(source.keys.Key("expert_count"), " is missing; gpt-oss needs experts"));
  }
  blocks.experts.biases = true;
  blocks.experts.gate_limit = kGateLimit;
  blocks.experts.gate_alpha = kGateAlpha;
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(source.keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
