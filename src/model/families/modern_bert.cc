// Encoders whose norms are in front of the blocks: modern-bert (ModernBERT, Granite Embedding R2) and
// gemma-embedding (EmbeddingGemma).
//
//   modern-bert       x = norm(token);  x += attention(norm(x));  x += ffn(norm(x));  then norm(x)
//                     layer norms without biases; layer 0's attention reads x itself
//   gemma-embedding   the layers of gemma3
//
// Tokens of layers with a window see as many tokens on each side as half of it. These layers are all but the
// first of every three in modern-bert, all but the last of every six in gemma-embedding, and have a rotation
// of their own. GELU is the tanh form as in llama.cpp, while ModernBERT's published code computes it with erf.
//
// Source: Warner et al., "Smarter, better, faster, longer" (2024); Vera et al., "EmbeddingGemma" (2025); names as
// llama.cpp writes them.
#include <cmath>
#include <string_view>
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

class ModernBert final : public BlockDecoder {
 public:
  using BlockDecoder::BlockDecoder;

 protected:
  Status LoadModelTensors(WeightReader& reader) override {
    KVCACHE_ASSIGN_OR_RETURN(norm_, reader.LayerNorm("token_embd_norm", params().hidden_size,
                                                     params().norm_epsilon, Bias::kNone));
    return Status::Ok();
  }
  void RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) override {
    pass.Normalize(x, norm_, x);
    BlockDecoder::RunLayers(pass, tokens, x);
  }

 private:
  Norm norm_;
};

// Reads the rotations, of all layers and of those with a window.
Status ReadRopes(ModelSource& source, const LayerParams& params, BlockParams* blocks) {
  constexpr auto kHalves = RopeParams::Pairing::kHalves;
  KVCACHE_ASSIGN_OR_RETURN(blocks->spans, ReadAttentionSpans(source.keys, params));
  KVCACHE_ASSIGN_OR_RETURN(blocks->rope, ReadRope(source.keys, params, kHalves, source.weights));
  KVCACHE_ASSIGN_OR_RETURN(blocks->window_rope, ReadWindowRope(source.keys, params.k_dim, kHalves));
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeModernBert(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params,
                           ReadLayerParams(keys, LayerKinds::kEncoder, NormKind::kLayer));
  constexpr std::string_view kActivation = "hidden_activation";
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view activation, keys.StringOr(kActivation, "gelu"));
  if (activation != "gelu" && activation != "silu") return keys.Unsupported(kActivation);
  params.activation = activation == "gelu" ? Activation::kGelu : Activation::kSilu;
  params.fused_gate = true;
  params.pooled_head = PooledHeadKind::kModernBert;
  keys.Ignore("classifier.output_labels");
  BlockParams blocks{.first_norm_optional = true};
  KVCACHE_RETURN_IF_ERROR(ReadRopes(source, params, &blocks));
  return source.Make<ModernBert>(std::move(params), std::move(blocks));
}

Result<std::unique_ptr<Decoder>> MakeGemmaEmbedding(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys, LayerKinds::kEncoder));
  params.embedding_scale = std::sqrt(static_cast<float>(params.hidden_size));
  params.activation = Activation::kGelu;
  params.pooled_head = PooledHeadKind::kDense;
  // The tensors say the same.
  for (const char* const key :
       {"dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"}) {
    keys.Ignore(key);
  }
  source.weights.Ignore("output.weight");
  BlockParams blocks{.attention = {.norms = QkNorms::kHeads}, .post_norms = true};
  KVCACHE_RETURN_IF_ERROR(ReadRopes(source, params, &blocks));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

}  // namespace kvcache
