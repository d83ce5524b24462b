// The deepseek2 architecture: DeepSeek V2, V3, R1 and those built like them. Latent attention; the
// first layers are dense, the others mixtures of experts of which some are every token's. Experts
// are chosen by softmax (V2) or by sigmoid plus a bias (V3), out of the best groups of them where
// the file says so: by a group's best expert in V2, by the sum of its two best in V3. (llama.cpp
// takes the two best for both.)
//
// With YaRN what turns keeps its magnitude, and scores are multiplied by (1 + m ln s)², where m is
// rope.scaling.yarn_log_multiplier and s the factor.
//
// Source: DeepSeek-AI, "DeepSeek-V2" and "DeepSeek-V3" (2024) and the code published with them;
// keys as llama.cpp writes them.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/graph/decoder.h"
#include "model/graph/latent_attention.h"
#include "model/graph/shared_experts.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

struct DeepSeekParams {
  LatentShape attention;  // heads as in layer 0
  int dense_layers = 0;
  std::int64_t shared_ffn = 0;
};

class DeepSeek2 final : public Decoder {
 public:
  DeepSeek2(Backend& backend, std::string_view name, LayerParams params,
            const ExpertParams& experts, const DeepSeekParams& own, RopeTable rope)
      : Decoder(backend, name, std::move(params)),
        experts_(experts),
        own_(own),
        rope_(std::move(rope)) {}

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override {
    RopeParams rope = rope_.params();
    rope.first = own_.attention.first_turned();
    return rope;
  }

 private:
  struct Layer {
    Norm attn_norm, ffn_norm;
    LatentAttention attention;
    SharedExperts ffn;
  };

  ExpertParams experts_;
  DeepSeekParams own_;
  RopeTable rope_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

Status DeepSeek2::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  const LayerParams& p = params();
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.attn_norm,
                           reader.RmsNorm(prefix + "attn_norm", p.width, p.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention, LatentAttention::Load(reader, prefix, own_.attention));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm,
                           reader.RmsNorm(prefix + "ffn_norm", p.width, p.norm_epsilon));
  if (index < own_.dense_layers) {
    KVCACHE_ASSIGN_OR_RETURN(layer.ffn, SharedExperts::Dense(reader, p, index));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(layer.ffn,
                             SharedExperts::Routed(reader, p, experts_, own_.shared_ffn, index));
  }
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void DeepSeek2::RunLayer(Pass& pass, int index, const TensorView& x) {
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().width);
  pass.RmsNorm(x, layer.attn_norm, h);
  layer.attention.Run(pass, index, h, rope_.params(), params().attention_scale, h);
  pass.Add(x, h);
  pass.RmsNorm(x, layer.ffn_norm, h);
  layer.ffn.Run(pass, plan_, h, h);
  pass.Add(x, h);
}

Status CheckSizes(KeyReader& keys, const LayerParams& params, const LatentShape& shape) {
  const KvShape kv = shape.kv();
  if (params.k_dim == kv.k_dim && params.v_dim == kv.v_dim) return Status::Ok();
  return {StatusCode::kCorrupt,
          StrCat(keys.Key("attention.key_length"), " and value_length are ", params.k_dim, " and ",
                 params.v_dim, ", expected ", kv.k_dim, " and ", kv.v_dim)};
}

Result<LatentShape> ReadLatentShape(KeyReader& keys, const LayerParams& params) {
  constexpr int kMost = 1 << 16;
  LatentShape shape{.width = params.width, .norm_epsilon = params.norm_epsilon};
  KVCACHE_ASSIGN_OR_RETURN(shape.q_rank, keys.IntOrZero("attention.q_lora_rank", kMost));
  KVCACHE_ASSIGN_OR_RETURN(shape.rank, keys.Int("attention.kv_lora_rank", kMost));
  shape.absorbed = keys.Has("attention.key_length_mla");
  int query = params.k_dim;
  shape.value = params.v_dim;
  if (shape.absorbed) {
    KVCACHE_ASSIGN_OR_RETURN(query, keys.Int("attention.key_length_mla", kMost));
    KVCACHE_ASSIGN_OR_RETURN(shape.value, keys.Int("attention.value_length_mla", kMost));
  }
  KVCACHE_ASSIGN_OR_RETURN(shape.rope, keys.Int("rope.dimension_count", query));
  shape.plain = query - shape.rope;
  shape.heads = params.heads[0];
  if (shape.plain < 1) {
    return Status(StatusCode::kCorrupt, StrCat(keys.Key("rope.dimension_count"), " is ", shape.rope,
                                               ", expected less than ", query));
  }
  for (std::size_t i = 0; i < params.heads.size(); ++i) {
    if (params.heads[i] == shape.heads && params.kv_heads[i] == shape.kv().kv_heads) continue;
    return Status(StatusCode::kCorrupt,
                  StrCat("layer ", i, " has ", params.heads[i], " heads and ", params.kv_heads[i],
                         " KV heads, expected ", shape.heads, " and ", shape.kv().kv_heads));
  }
  KVCACHE_RETURN_IF_ERROR(CheckSizes(keys, params, shape));
  return shape;
}

// The scores' factor, and no magnitude of what turns.
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
    magnitude = 1.0 + multiplier * std::log(summary.factor);
  }
  rope->magnitude = 1.0f;
  params->attention_scale =
      static_cast<float>(magnitude * magnitude / std::sqrt(static_cast<double>(shape.query())));
  return Status::Ok();
}

Result<ExpertParams> ReadExperts(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(
      ExpertParams experts,
      ReadExpertParams(keys, params, {.sigmoid = true, .groups = true, .renormalise = false}));
  if (experts.count == 0) return Status(StatusCode::kUnsupported, "deepseek2 without experts");
  // Files of GLM 4.7 Flash do not say it; only routers by sigmoid have a bias for the choice.
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

Result<std::unique_ptr<Model>> LoadDeepSeek2(const GgufFile& file, std::string_view name,
                                             Backend& backend) {
  KeyReader keys(file, name);
  WeightReader weights(file, backend);
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(const ExpertParams experts, ReadExperts(keys, params));
  DeepSeekParams own;
  KVCACHE_ASSIGN_OR_RETURN(own.attention, ReadLatentShape(keys, params));
  params.v_in_k = own.attention.kv().v_in_k;
  KVCACHE_ASSIGN_OR_RETURN(own.dense_layers,
                           keys.IntOrZero("leading_dense_block_count", params.layers));
  KVCACHE_ASSIGN_OR_RETURN(const int shared, keys.Int("expert_shared_count", 1 << 10));
  own.shared_ffn = std::int64_t{shared} * experts.ffn;
  KVCACHE_ASSIGN_OR_RETURN(RopeTable rope,
                           ReadRope(keys, params, RopeParams::Pairing::kInterleaved, weights));
  KVCACHE_RETURN_IF_ERROR(ReadScale(keys, own.attention, &params, &rope));
  KVCACHE_RETURN_IF_ERROR(keys.CheckAllUsed());
  return LoadDecoder(
      std::make_unique<DeepSeek2>(backend, name, std::move(params), experts, own, std::move(rope)),
      weights, file);
}

}  // namespace kvcache
