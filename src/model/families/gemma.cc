// The gemma2 and gemma3 architectures. Embeddings are scaled by √hidden_size and gates are GELU's.
// Attention and the feed-forward part have a norm before and a norm after them. Layers with a
// window alternate with layers that see all tokens.
//
// gemma2 soft-caps scores and logits: cap · tanh(x / cap). gemma3 norms each head's query and key
// instead, and its window layers have RoPE frequencies of their own, without scaling.
//
// A norm's weight in a file is the published weight plus 1: converters add the 1.
//
// Source: "Gemma 2" (2024) and "Gemma 3 technical report" (2025). The scale of the largest models'
// queries is that of the published configurations (query_pre_attn_scalar); files do not carry it.
#include <cmath>
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

// The 27B models scale queries by hidden size / heads instead of by the head's size. The number of
// layers identifies them.
void ScaleQueries(const KeyReader& keys, int layers_of_27b, LayerParams* params) {
  if (params->layers != layers_of_27b || keys.Has("attention.scale")) return;
  const double size_per_head = 1.0 * params->hidden_size / params->heads[0];
  params->attention_scale = static_cast<float>(1.0 / std::sqrt(size_per_head));
}

Status ReadGemma2(KeyReader& keys, LayerParams* params, BlockParams* blocks) {
  ScaleQueries(keys, 46, params);
  KVCACHE_ASSIGN_OR_RETURN(blocks->soft_cap, ReadSoftCap(keys, "attn_logit_softcapping", 50.0));
  KVCACHE_ASSIGN_OR_RETURN(params->logit_soft_cap,
                           ReadSoftCap(keys, "final_logit_softcapping", 30.0));
  return Status::Ok();
}

Status ReadGemma3(KeyReader& keys, LayerParams* params, BlockParams* blocks) {
  ScaleQueries(keys, 62, params);
  blocks->attention.norms = QkNorms::kHeads;
  KVCACHE_ASSIGN_OR_RETURN(params->logit_soft_cap,
                           ReadSoftCap(keys, "final_logit_softcapping", 0.0));
  KVCACHE_ASSIGN_OR_RETURN(blocks->window_rope,
                           ReadWindowRope(keys, params->k_dim, RopeParams::Pairing::kHalves));
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeGemma(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  params.embedding_scale = std::sqrt(static_cast<float>(params.hidden_size));
  params.activation = Activation::kGelu;
  BlockParams blocks{.post_norms = true};
  KVCACHE_ASSIGN_OR_RETURN(blocks.spans, ReadAttentionSpans(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  const auto read = source.name == "gemma2" ? ReadGemma2 : ReadGemma3;
  KVCACHE_RETURN_IF_ERROR(read(keys, &params, &blocks));
  IgnoreVisionAndAudio(keys, source.weights);
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
