// The granitehybrid architecture (IBM's Granite 4.0 H), and granite and granitemoe (Granite 3 and 4), which
// have attention alone. granitehybrid has Mamba-2 layers, and a few layers of
// grouped-query attention, mostly without rotation. The feed-forward part is dense, or experts with
// a shared expert. The file gives factors for the embedding and for the results that layers add,
// and a divisor of the logits.
//
// Source: IBM, "Granite 4.0" (2025), and transformers' modeling_granitemoehybrid.
#include <map>
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/hybrid_decoder.h"
#include "model/graph/mamba2.h"

namespace kvcache {
namespace {

class GraniteHybrid final : public HybridDecoder {
 public:
  using HybridDecoder::HybridDecoder;

 protected:
  Status LoadMixer(WeightReader& reader, int index, SelfAttention* attention) override;
  void RunMixer(Pass& pass, int index, const TensorView& h) override;

 private:
  std::map<int, Mamba2> mambas_;  // by layer
};

Status GraniteHybrid::LoadMixer(WeightReader& reader, int index, SelfAttention* attention) {
  if (!IsRecurrent(index)) return HybridDecoder::LoadMixer(reader, index, attention);
  KVCACHE_ASSIGN_OR_RETURN(mambas_[index], Mamba2::Load(reader, params(), recurrent(), index));
  return Status::Ok();
}

void GraniteHybrid::RunMixer(Pass& pass, int index, const TensorView& h) {
  if (!IsRecurrent(index)) return HybridDecoder::RunMixer(pass, index, h);
  mambas_.at(index).Run(pass, recurrent(), index, h, h);
}

// Reads a factor; 1 if the key is missing or 0.
Result<float> Factor(KeyReader& keys, std::string_view key) {
  KVCACHE_ASSIGN_OR_RETURN(const double factor, keys.FloatOr(key, 1.0));
  return factor == 0.0 ? 1.0f : static_cast<float>(factor);
}

// Reads the factors that only this family has, and whether queries and keys are rotated.
Status ReadGranite(KeyReader& keys, LayerParams* params, BlockParams* blocks) {
  KVCACHE_ASSIGN_OR_RETURN(params->embedding_scale, Factor(keys, "embedding_scale"));
  KVCACHE_ASSIGN_OR_RETURN(blocks->residual_scale, Factor(keys, "residual_scale"));
  KVCACHE_ASSIGN_OR_RETURN(const float divisor, Factor(keys, "logit_scale"));
  params->logit_scale = 1.0f / divisor;
  KVCACHE_ASSIGN_OR_RETURN(const bool rotates, keys.BoolOr("rope.scaling.finetuned", true));
  if (!rotates) blocks->rope = {};
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeGranite(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent}};
  if (source.name == "granitemoe") {
    KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadExpertParams(keys, params));
    if (blocks.experts.count == 0) return keys.Unsupported("expert_count");
    blocks.experts.ffn = params.ffn[0];
  }
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts.shared_ffn,
                           keys.IntOrZero("expert_shared_feed_forward_length", 1 << 23));
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  KVCACHE_RETURN_IF_ERROR(ReadGranite(keys, &params, &blocks));
  return source.Make<BlockDecoder>(std::move(params), std::move(blocks));
}

Result<std::unique_ptr<Decoder>> MakeGraniteHybrid(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys, LayerKinds::kHybrid));
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent}};
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadExpertParams(keys, params));
  // Dense files may have the key as well; they have no shared expert.
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts.shared_ffn,
                           keys.IntOrZero("expert_shared_feed_forward_length", 1 << 23));
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  KVCACHE_RETURN_IF_ERROR(ReadGranite(keys, &params, &blocks));
  return source.Make<GraniteHybrid>(std::move(params), std::move(recurrent), std::move(blocks));
}

}  // namespace kvcache
