// The architectures whose layers are one block each: nemotron_h and nemotron_h_moe (NVIDIA's Nemotron-H and
// Nemotron 3), mamba2 (the authors' Mamba-2).
//
//   x += block(rms(x))       block: a Mamba-2 mixer, attention without rotation, or a feed-forward part
//
// A layer with KV heads is attention, one with a feed-forward length the feed-forward part, any other a
// mixer; mamba2 has mixers alone. The feed-forward part has no gate: down (relu (up h))². Experts are
// scored by sigmoids and chosen with a bias. They may work on a narrower, latent state, while the router
// and the network of every token read the whole one:
//
//   out = latent_up · experts(latent_down · h) + shared(h)
//
// Source: NVIDIA, "Nemotron-H" (2025), "Nemotron 3" (2025), and transformers' modeling_nemotron_h.
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/families/architectures.h"
#include "model/graph/hybrid_decoder.h"
#include "model/graph/mamba2.h"

namespace kvcache {
namespace {

// down (relu (up h))².
struct SquaredFeedForward {
  Projection up, down;

  static Result<SquaredFeedForward> Load(WeightReader& reader, const std::string& prefix,
                                         std::int64_t hidden_size, std::int64_t ffn,
                                         const std::string& suffix = "") {
    SquaredFeedForward f;
    KVCACHE_ASSIGN_OR_RETURN(
        f.up, reader.Linear(prefix + "ffn_up" + suffix, hidden_size, ffn, Bias::kIfPresent));
    KVCACHE_ASSIGN_OR_RETURN(
        f.down, reader.Linear(prefix + "ffn_down" + suffix, ffn, hidden_size, Bias::kIfPresent));
    return f;
  }

  void Run(Pass& pass, const TensorView& h, const TensorView& out) const {
    const Pass::Scope scope(pass);
    const TensorView inner = pass.TakeHidden(up.weight->outputs());
    pass.Linear(h, {{up, inner}});
    pass.Activate(inner, Activation::kReluSquared);
    pass.Linear(inner, {{down, out}});
  }
};

struct LatentExperts {
  Experts experts;
  std::optional<Projection> into, back;  // hidden_size → latent → hidden_size
  SquaredFeedForward shared;

  static Result<LatentExperts> Load(WeightReader& reader, const std::string& prefix,
                                    std::int64_t hidden_size, const ExpertParams& params);
  // Replaces h by the result for it.
  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h) const;
};

Result<LatentExperts> LatentExperts::Load(WeightReader& reader, const std::string& prefix,
                                          std::int64_t hidden_size, const ExpertParams& params) {
  LatentExperts e;
  KVCACHE_ASSIGN_OR_RETURN(e.experts, Experts::Load(reader, prefix, hidden_size, params));
  KVCACHE_ASSIGN_OR_RETURN(
      e.shared, SquaredFeedForward::Load(reader, prefix, hidden_size, params.shared_ffn, "_shexp"));
  if (params.latent == 0) return e;
  KVCACHE_ASSIGN_OR_RETURN(e.into,
                           reader.Linear(prefix + "ffn_latent_down", hidden_size, params.latent));
  KVCACHE_ASSIGN_OR_RETURN(e.back,
                           reader.Linear(prefix + "ffn_latent_up", params.latent, hidden_size));
  return e;
}

void LatentExperts::Run(Pass& pass, ExpertPlan& plan, const TensorView& h) const {
  const Pass::Scope scope(pass);
  const TensorView routed = pass.TakeHidden(h.dims[0]);
  if (into.has_value()) {
    const TensorView logits = pass.TakeHidden(experts.params.count);
    const TensorView latent = pass.TakeHidden(experts.params.latent);
    pass.Linear(h, {{experts.router, logits}, {*into, latent}});
    experts.RunRouted(pass, plan, logits, latent, latent);
    pass.Linear(latent, {{*back, routed}});
  } else {
    experts.Run(pass, plan, h, routed);
  }
  shared.Run(pass, h, h);
  pass.Add(h, routed);
}

class NemotronH final : public HybridDecoder {
 public:
  using HybridDecoder::HybridDecoder;

 protected:
  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;

 private:
  struct Layer {
    Norm norm;
    std::variant<Mamba2, SelfAttention, SquaredFeedForward, LatentExperts> block;
  };
  Status LoadBlock(WeightReader& reader, int index, Layer* layer) const;

  std::vector<Layer> layers_;
  ExpertPlan plan_;
};

Status NemotronH::LoadBlock(WeightReader& reader, int index, Layer* layer) const {
  const std::string prefix = LayerPrefix(index);
  const int ffn = params().ffn[static_cast<std::size_t>(index)];
  if (IsRecurrent(index)) {
    KVCACHE_ASSIGN_OR_RETURN(layer->block, Mamba2::Load(reader, params(), recurrent(), index));
  } else if (ffn == 0) {
    KVCACHE_ASSIGN_OR_RETURN(layer->block,
                             SelfAttention::Load(reader, params(), index, blocks().attention));
  } else if (blocks().experts.count == 0) {
    KVCACHE_ASSIGN_OR_RETURN(layer->block,
                             SquaredFeedForward::Load(reader, prefix, params().hidden_size, ffn));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(
        layer->block, LatentExperts::Load(reader, prefix, params().hidden_size, blocks().experts));
  }
  return Status::Ok();
}

Status NemotronH::LoadLayer(WeightReader& reader, int index) {
  Layer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.norm, reader.RmsNorm(LayerPrefix(index) + "attn_norm",
                                                      params().hidden_size, params().norm_epsilon));
  KVCACHE_RETURN_IF_ERROR(LoadBlock(reader, index, &layer));
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void NemotronH::RunLayer(Pass& pass, int index, const TensorView& x) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(params().hidden_size);
  pass.RmsNorm(x, layer.norm, h);
  if (const auto* const mamba = std::get_if<Mamba2>(&layer.block)) {
    mamba->Run(pass, recurrent(), index, h, h);
  } else if (const auto* const attention = std::get_if<SelfAttention>(&layer.block)) {
    attention->Run(pass, index, h, {.attention = {.scale = params().attention_scale}}, h);
  } else if (const auto* const plain = std::get_if<SquaredFeedForward>(&layer.block)) {
    plain->Run(pass, h, h);
  } else {
    std::get<LatentExperts>(layer.block).Run(pass, plan_, h);
  }
  pass.Add(x, h);
}

Result<ExpertParams> ReadNemotronExperts(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(
      ExpertParams experts,
      ReadExpertParams(keys, params, {.sigmoid = true, .groups = true, .renormalize = false}));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  KVCACHE_ASSIGN_OR_RETURN(experts.shared_ffn,
                           keys.Int("expert_shared_feed_forward_length", 1 << 23));
  KVCACHE_ASSIGN_OR_RETURN(const int latent, keys.IntOrZero("moe_latent_size", 1 << 20));
  experts.latent = latent;
  keys.Ignore("expert_shared_count");  // their lengths are given as one
  experts.gate = RouterOptions::Gate::kSigmoid;
  experts.selection_bias = true;
  experts.group_best = 2;
  experts.gated = false;
  experts.activation = Activation::kReluSquared;
  return experts;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeNemotronH(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys, LayerKinds::kPartial));
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent, .output_bias = Bias::kIfPresent}};
  if (source.name == "nemotron_h_moe") {
    KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadNemotronExperts(keys, params));
  }
  keys.IgnoreAll("rope.");  // nothing is rotated
  return source.Make<NemotronH>(std::move(params), std::move(recurrent), std::move(blocks));
}

}  // namespace kvcache
