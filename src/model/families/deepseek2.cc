// The deepseek2 architecture: DeepSeek V2, V3, R1 and models of the same structure. Attention is
// latent. The first layers are dense; the others are mixtures of experts with shared experts.
//
// The router scores experts by softmax (V2) or by sigmoid plus a bias (V3). If the file has groups,
// it chooses from the best groups only. A group's score is its best expert in V2 and the sum of its
// two best in V3. (llama.cpp takes the two best for both.)
//
// With YaRN the rotated values keep their magnitude; scores are multiplied by (1 + m ln s)²
// instead, where m is rope.scaling.yarn_log_multiplier and s the factor.
//
// Source: DeepSeek-AI, "DeepSeek-V2" and "DeepSeek-V3" (2024) and the code published with them;
// keys as llama.cpp writes them.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/arithmetic/doubles.h"
#include "base/errors.h"
#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/graph/attention/latent_attention.h"
#include "model/graph/block_decoder.h"

namespace kvcache {
namespace {

class DeepSeek2 final : public BlockDecoder {
 public:
  // All layers have the heads of layer 0.
  DeepSeek2(Backend& backend, std::string_view name, LayerParams params, BlockParams blocks,
            const LatentShape& shape)
      : BlockDecoder(backend, name, std::move(params), std::move(blocks)), shape_(shape) {}

 protected:
  Status LoadMixer(WeightReader& reader, int index, SelfAttention* /*attention*/) override {
    KVCACHE_ASSIGN_OR_RETURN(LatentAttention latent,
                             LatentAttention::Load(reader, LayerPrefix(index), shape_));
    attention_.push_back(std::move(latent));
    return Status::Ok();
  }
  void RunMixer(Pass& pass, int index, const TensorView& h) override {
    attention_[static_cast<std::size_t>(index)].Run(pass, index, h, blocks().rope.params(),
                                                    params().attention_scale, h);
  }
  RopeParams rope(int layer) const override {
    RopeParams rope = BlockDecoder::rope(layer);
    rope.first = shape_.rope_first();
    return rope;
  }

 private:
  LatentShape shape_;
  std::vector<LatentAttention> attention_;  // [layers]
};

Status CheckSizes(KeyReader& keys, const LayerParams& params, const LatentShape& shape) {
  const KvShape kv = shape.kv();
  if (params.k_dim == kv.k_dim && params.v_dim == kv.v_dim) return Status::Ok();
  return Corrupt(StrCat(keys.Key("attention.key_length"), " and value_length are ", params.k_dim,
                        " and ", params.v_dim, "; must be ", kv.k_dim, " and ", kv.v_dim));
}

Result<LatentShape> ReadLatentShape(KeyReader& keys, const LayerParams& params) {
  constexpr int kMax = 1 << 16;
  LatentShape shape{.hidden_size = params.hidden_size, .norm_epsilon = params.norm_epsilon};
  KVCACHE_ASSIGN_OR_RETURN(shape.q_rank, keys.IntOrZero("attention.q_lora_rank", kMax));
  KVCACHE_ASSIGN_OR_RETURN(shape.kv_rank, keys.Int("attention.kv_lora_rank", kMax));
  shape.absorbed = keys.Has("attention.key_length_mla");
  int query = params.k_dim;
  shape.v_dim = params.v_dim;
  if (shape.absorbed) {
    KVCACHE_ASSIGN_OR_RETURN(query, keys.Int("attention.key_length_mla", kMax));
    KVCACHE_ASSIGN_OR_RETURN(shape.v_dim, keys.Int("attention.value_length_mla", kMax));
  }
  KVCACHE_ASSIGN_OR_RETURN(shape.rope_dim, keys.Int("rope.dimension_count", query));
  shape.nope_dim = query - shape.rope_dim;
  shape.heads = params.heads[0];
  if (shape.nope_dim < 1) {
    return Corrupt(StrCat(keys.Key("rope.dimension_count"), " is ", shape.rope_dim,
                          "; must be below ", query));
  }
  for (std::size_t i = 0; i < params.heads.size(); ++i) {
    if (params.heads[i] == shape.heads && params.kv_heads[i] == shape.kv().kv_heads) continue;
    return Corrupt(StrCat("layer ", i, " has ", params.heads[i], " heads and ", params.kv_heads[i],
                          " KV heads; must have ", shape.heads, " and ", shape.kv().kv_heads));
  }
  KVCACHE_RETURN_IF_ERROR(CheckSizes(keys, params, shape));
  return shape;
}

// Sets the scores' factor, and the rotation's magnitude to 1.
Status ReadScale(KeyReader& keys, const LatentShape& shape, LayerParams* params, RopeTable* rope) {
  if (keys.Has("attention.scale")) return keys.Unsupported("attention.scale");
  KVCACHE_ASSIGN_OR_RETURN(const RopeSummary summary, ReadRopeSummary(keys, *params));
  if (summary.scaling == "linear") return keys.Unsupported("rope.scaling.type");
  KVCACHE_ASSIGN_OR_RETURN(const double attn_factor, keys.FloatOr("rope.scaling.attn_factor", 1.0));
  if (attn_factor != 1.0) return keys.Unsupported("rope.scaling.attn_factor");
  double magnitude = 1.0;
  if (summary.scaling == "yarn") {
    KVCACHE_ASSIGN_OR_RETURN(const double multiplier,
                             keys.Float("rope.scaling.yarn_log_multiplier"));
    magnitude = 1.0 + multiplier * arithmetic::Log(summary.factor);
  }
  rope->magnitude = 1.0f;
  params->attention_scale =
      static_cast<float>(magnitude * magnitude / std::sqrt(static_cast<double>(shape.q_dim())));
  return Status::Ok();
}

Result<ExpertParams> ReadDeepseekExperts(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(
      ExpertParams experts,
      ReadExpertParams(keys, params, {.sigmoid = true, .groups = true, .renormalize = false}));
  if (experts.count == 0) {
    return Unsupported(
        StrCat(keys.Key("expert_count"), " is 0 or missing; deepseek2 needs experts"));
  }
  // Files of GLM 4.7 Flash lack expert_gating_func. Only sigmoid routers have a bias for the
  // choice, so its tensor identifies them.
  const std::string bias = LayerPrefix(params.layers - 1) + "exp_probs_b.bias";
  if (!keys.Has("expert_gating_func") && keys.file().FindTensor(bias) != nullptr) {
    experts.gate = RouterOptions::Gate::kSigmoid;
  }
  experts.selection_bias = true;
  const int size = experts.count / experts.groups;
  experts.group_best = experts.gate == RouterOptions::Gate::kSigmoid ? std::min(2, size) : 1;
  return experts;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeDeepSeek2(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  BlockParams blocks{.can_have_head = true};
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadDeepseekExperts(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(const LatentShape shape, ReadLatentShape(keys, params));
  params.v_in_k = shape.kv().v_in_k;
  KVCACHE_ASSIGN_OR_RETURN(blocks.experts.first_layer,
                           keys.IntOrZero("leading_dense_block_count", params.layers));
  KVCACHE_ASSIGN_OR_RETURN(const int shared, keys.Int("expert_shared_count", 1 << 10));
  blocks.experts.shared_ffn = std::int64_t{shared} * blocks.experts.ffn;
  KVCACHE_ASSIGN_OR_RETURN(
      blocks.rope, ReadRope(keys, params, RopeParams::Pairing::kInterleaved, source.weights));
  KVCACHE_RETURN_IF_ERROR(ReadScale(keys, shape, &params, &blocks.rope));
  return source.Make<DeepSeek2>(std::move(params), std::move(blocks), shape);
}

}  // namespace kvcache
