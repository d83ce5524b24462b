// The bert family of encoders: bert (BERT, MiniLM, BGE, E5, XLM-RoBERTa, BGE-M3 and their rerankers),
// jina-bert-v2, jina-bert-v3, nomic-bert, nomic-bert-moe. Norms follow the sums:
//
//   x = norm(token + type 0 + position)
//   x = norm(x + attention(x));  x = norm(x + ffn(x))
//
//                    position                 ffn
//   bert             a table                  GELU
//   jina-bert-v2     ALiBi                    GELU gate, or GELU; norms of q and k in some files
//   jina-bert-v3     RoPE                     GELU
//   nomic-bert       RoPE                     SiLU gate
//   nomic-bert-moe   RoPE                     GELU; experts in every second layer
//
// Files of jina-bert-v2 for code have a second norm: norm2(norm(x + attention(x)) + x). ALiBi adds -slope ×
// distance to a score; a head's slope is a power of two. GELU is the tanh form as in llama.cpp; the published
// code computes it with erf.
//
// Source: Devlin et al., "BERT" (2018); Press et al., "Train short, test long" (2021); Günther et al., "Jina
// embeddings 2" (2023); Nussbaum et al., "Nomic embed" (2024); names as llama.cpp writes them.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/arithmetic/doubles.h"
#include "base/errors.h"
#include "base/strings.h"
#include "model/families/architectures.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/load/rope_scaling.h"

namespace kvcache {
namespace {

constexpr double kMaxAlibiBias = 8.0;  // llama.cpp has the number fixed
// Of half of the table, which has a value for each distance and head: published models have 98,304.
constexpr std::int64_t kMaxAlibiValues = 1 << 24;

// Returns each head's factor on the distance.
std::vector<double> AlibiSlopes(int heads) {
  int power = 1;
  while (power * 2 <= heads) power *= 2;
  const double base = arithmetic::Power(2.0, -kMaxAlibiBias / power);
  const double between = arithmetic::Power(2.0, -kMaxAlibiBias / 2 / power);
  std::vector<double> slopes;
  for (int i = 0; i < heads; ++i) {
    slopes.push_back(i < power ? arithmetic::Power(base, i + 1)
                               : arithmetic::Power(between, 2 * (i - power) + 1));
  }
  return slopes;
}

struct BertSettings {
  bool has_positions = false;  // a table of them
  bool has_alibi = false;
  RopeTable rope{};  // dims 0: none
  ExpertParams experts{};
};

class Bert final : public Decoder {
 public:
  Bert(Backend& backend, std::string_view name, LayerParams params, BertSettings settings)
      : Decoder(backend, name, std::move(params)), settings_(std::move(settings)) {}

 protected:
  Status LoadModelTensors(WeightReader& reader) override;
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  RopeParams rope(int) const override { return settings_.rope.params(); }

 private:
  struct Layer {
    SelfAttention attention;
    Norm attention_norm;
    std::optional<Norm> second_norm;
    FeedForward ffn;
    Norm output_norm;
  };

  Result<Norm> TakeNorm(WeightReader& reader, const std::string& name) const {
    return reader.LayerNorm(name, params().hidden_size, params().norm_epsilon, Bias::kRequired);
  }
  void FillAlibi();

  BertSettings settings_;
  std::unique_ptr<Buffer> type_;  // [hidden_size]: row 0 of the types' table; null without one
  std::optional<TensorView> positions_;  // [hidden_size, context]
  Norm norm_;
  std::vector<Layer> layers_;
  std::vector<float> alibi_;  // see PositionBias
  PositionBias bias_;
  ExpertPlan plan_;
};

// The nearest value serves distances beyond a table's end, so the table has all distances.
void Bert::FillAlibi() {
  const int reach = params().context_length - 1;
  for (const double slope : AlibiSlopes(params().heads[0])) {
    for (int i = -reach; i <= reach; ++i) {
      alibi_.push_back(static_cast<float>(-slope * std::abs(i)));
    }
  }
  bias_ = {.values = alibi_, .past = reach, .future = reach};
}

Status Bert::LoadModelTensors(WeightReader& reader) {
  const std::int64_t size = params().hidden_size;
  if (const std::int64_t rows = reader.Rows("token_types.weight"); rows > 0) {
    KVCACHE_ASSIGN_OR_RETURN(const TensorView types,
                             reader.Table("token_types.weight", size, rows));
    KVCACHE_ASSIGN_OR_RETURN(type_,
                             backend().Allocate(static_cast<std::size_t>(size) * sizeof(float)));
    const std::int32_t row[] = {0};
    KVCACHE_RETURN_IF_ERROR(
        backend().Embed(types, row, TensorView::Dense(type_->data(), DType::kF32, size, 1)));
  }
  if (settings_.has_positions) {
    KVCACHE_ASSIGN_OR_RETURN(positions_,
                             reader.Table("position_embd.weight", size, params().context_length));
  }
  if (settings_.has_alibi) {
    KVCACHE_RETURN_IF_ERROR(Guarded("no memory for ALiBi's table", [&] { FillAlibi(); }));
  }
  KVCACHE_ASSIGN_OR_RETURN(norm_, TakeNorm(reader, "token_embd_norm"));
  return Status::Ok();
}

Status Bert::LoadLayer(WeightReader& reader, int index) {
  const std::string prefix = LayerPrefix(index);
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(
      layer.attention,
      SelfAttention::Load(reader, params(), index,
                          {.bias = Bias::kIfPresent,
                           .output_bias = Bias::kIfPresent,
                           .norms = settings_.has_alibi ? QkNorms::kRows : QkNorms::kNone,
                           .row_layer_norms = settings_.has_alibi}));
  KVCACHE_ASSIGN_OR_RETURN(layer.attention_norm, TakeNorm(reader, prefix + "attn_output_norm"));
  if (settings_.has_alibi && reader.Has(prefix + "attn_norm_2.weight")) {
    KVCACHE_ASSIGN_OR_RETURN(layer.second_norm, TakeNorm(reader, prefix + "attn_norm_2"));
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn,
                           FeedForward::Load(reader, params(), settings_.experts, index));
  KVCACHE_ASSIGN_OR_RETURN(layer.output_norm, TakeNorm(reader, prefix + "layer_output_norm"));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void Bert::RunLayers(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) {
  if (type_ != nullptr && pass.runs()) {
    pass.Check(
        backend().AddBias(x, TensorView::Dense(type_->data(), DType::kF32, params().hidden_size)));
  }
  if (positions_.has_value()) {
    const Pass::Scope scope(pass);
    const TensorView h = pass.TakeHidden(params().hidden_size);
    pass.Embed(*positions_, pass.positions(), h);
    pass.Add(x, h);
  }
  pass.Normalize(x, norm_, x);
  Decoder::RunLayers(pass, tokens, x);
}

void Bert::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  const TensorView before = pass.TakeHidden(layer.second_norm ? params().hidden_size : 0);
  if (layer.second_norm) pass.Copy(x, before);
  layer.attention.Run(
      pass, index, x,
      {.rope = rope(index), .attention = {.scale = params().attention_scale, .bias = bias_}}, h);
  pass.Add(x, h);
  pass.Normalize(x, layer.attention_norm, x);
  if (layer.second_norm) {
    pass.Add(x, before);
    pass.Normalize(x, *layer.second_norm, x);
  }
  layer.ffn.Run(pass, plan_, x, h);
  pass.Add(x, h);
  pass.Normalize(x, layer.output_norm, x);
}

// The form of jina-bert-v2's feed-forward part follows from the tensors.
void ReadJinaFeedForward(const WeightReader& weights, LayerParams* params) {
  const std::string prefix = LayerPrefix(0);
  params->fused_gate = weights.Rows(prefix + "ffn_up.weight") == 2 * std::int64_t{params->ffn[0]};
  params->gated = params->fused_gate || weights.Has(prefix + "ffn_gate.weight");
}

Status ReadAlibi(KeyReader& keys, const LayerParams& params) {
  constexpr std::string_view kKey = "attention.max_alibi_bias";
  if (std::int64_t{params.context_length} * params.heads[0] > kMaxAlibiValues) {
    return keys.Unsupported("context_length");
  }
  KVCACHE_ASSIGN_OR_RETURN(const double bias, keys.FloatOr(kKey, kMaxAlibiBias));
  return bias == kMaxAlibiBias ? Status::Ok() : keys.Unsupported(kKey);
}

Result<ExpertParams> ReadNomicExperts(KeyReader& keys, const LayerParams& params) {
  constexpr std::string_view kStep = "moe_every_n_layers";
  KVCACHE_ASSIGN_OR_RETURN(const int step, keys.IntOrZero(kStep, params.layers));
  if (step != 2) return keys.Unsupported(kStep);
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts,
                           ReadExpertParams(keys, params, {.renormalize = false}));
  experts.ffn = params.ffn[0];
  experts.layer_step = step;
  experts.gated = false;
  experts.activation = Activation::kGelu;
  return experts;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeBert(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params,
                           ReadLayerParams(keys, LayerKinds::kEncoder, NormKind::kLayer));
  params.output_norm_name = "";
  params.gated = source.name == "nomic-bert";
  params.activation = params.gated ? Activation::kSilu : Activation::kGelu;
  params.ffn_bias = params.gated ? Bias::kNone : Bias::kIfPresent;
  params.pooled_head = PooledHeadKind::kBert;
  keys.Ignore("classifier.output_labels");
  BertSettings settings{.has_positions = source.name == "bert",
                        .has_alibi = source.name == "jina-bert-v2"};
  if (settings.has_alibi) {
    ReadJinaFeedForward(source.weights, &params);
    KVCACHE_RETURN_IF_ERROR(ReadAlibi(keys, params));
  } else if (!settings.has_positions) {
    KVCACHE_ASSIGN_OR_RETURN(settings.rope,
                             ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  }
  if (source.name == "nomic-bert-moe") {
    KVCACHE_ASSIGN_OR_RETURN(settings.experts, ReadNomicExperts(keys, params));
  }
  return source.Make<Bert>(std::move(params), std::move(settings));
}

}  // namespace kvcache
