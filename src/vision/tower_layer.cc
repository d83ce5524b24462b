#include "vision/tower_layer.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace kvcache::vision {

Result<TowerLayer> TowerLayer::Load(TowerSource& source, const VisionSettings& settings,
                                    int index) {
  TowerLayer layer;
  layer.heads_ = settings.heads;
  layer.head_dim_ = settings.head_dim();
  layer.ffn_ = settings.ffn;
  layer.activation_ = settings.activation;
  if (settings.scales_scores) {
    layer.scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(settings.head_dim())));
  }
  if (settings.window > 0 && (index + 1) % settings.whole_layer_step != 0) {
    layer.reach_ = PictureAttention::Reach::kWindow;
  }
  const std::string prefix = StrCat("v.blk.", index, ".");
  const auto norm = [&](const std::string& name) {
    return settings.norm == NormKind::kRms
               ? source.reader.RmsNorm(name, settings.width, settings.epsilon)
               : source.reader.LayerNorm(name, settings.width, settings.epsilon, Bias::kIfPresent);
  };
  KVCACHE_ASSIGN_OR_RETURN(layer.attention_norm_, norm(prefix + "ln1"));
  KVCACHE_RETURN_IF_ERROR(layer.LoadAttention(source, settings, prefix));
  KVCACHE_ASSIGN_OR_RETURN(layer.ffn_norm_, norm(prefix + "ln2"));
  KVCACHE_RETURN_IF_ERROR(layer.LoadFeedForward(source, settings, prefix));
  if (settings.has_head_norms) {
    KVCACHE_RETURN_IF_ERROR(layer.LoadHeadNorms(source, settings, prefix));
  }
  if (settings.has_result_norms) {
    KVCACHE_ASSIGN_OR_RETURN(layer.attention_result_norm_, norm(prefix + "attn_post_norm"));
    KVCACHE_ASSIGN_OR_RETURN(layer.ffn_result_norm_, norm(prefix + "ffn_post_norm"));
  }
  return layer;
}

Status TowerLayer::LoadAttention(TowerSource& source, const VisionSettings& settings,
                                 const std::string& prefix) {
  const std::int64_t width = settings.width;
  if (source.reader.Has(prefix + "attn_qkv.weight")) {
    KVCACHE_ASSIGN_OR_RETURN(std::vector<Projection> parts,
                             source.reader.LinearParts(prefix + "attn_qkv", width,
                                                       {width, width, width}, Bias::kIfPresent));
    q_.by = std::move(parts[0]);
    k_.by = std::move(parts[1]);
    v_.by = std::move(parts[2]);
  } else {
    const auto take = [&](const char* name) {
      return TowerLinear::Load(source, prefix + name, width, width);
    };
    KVCACHE_ASSIGN_OR_RETURN(q_, take("attn_q"));
    KVCACHE_ASSIGN_OR_RETURN(k_, take("attn_k"));
    KVCACHE_ASSIGN_OR_RETURN(v_, take("attn_v"));
  }
  KVCACHE_ASSIGN_OR_RETURN(o_, TowerLinear::Load(source, prefix + "attn_out", width, width));
  return Status::Ok();
}

Status TowerLayer::LoadHeadNorms(TowerSource& source, const VisionSettings& settings,
                                 const std::string& prefix) {
  auto& reader = source.reader;
  KVCACHE_ASSIGN_OR_RETURN(q_norm_,
                           reader.RmsNorm(prefix + "attn_q_norm", head_dim_, settings.epsilon));
  KVCACHE_ASSIGN_OR_RETURN(k_norm_,
                           reader.RmsNorm(prefix + "attn_k_norm", head_dim_, settings.epsilon));
  KVCACHE_ASSIGN_OR_RETURN(
      ones_, PlacedVector::Make(source.backend, Backend::kBeforeLayers, head_dim_, 1.0F));
  v_norm_ = Norm{ones_.view(), settings.epsilon};
  return Status::Ok();
}

Status TowerLayer::LoadFeedForward(TowerSource& source, const VisionSettings& settings,
                                   const std::string& prefix) {
  const std::int64_t width = settings.width;
  std::string up = prefix + "ffn_up", down = prefix + "ffn_down";
  // Old converters gave the two each other's names.
  if (source.reader.Rows(up + ".weight") == width && width != ffn_) std::swap(up, down);
  KVCACHE_ASSIGN_OR_RETURN(up_, TowerLinear::Load(source, up, width, ffn_));
  if (settings.gated) {
    KVCACHE_ASSIGN_OR_RETURN(gate_, TowerLinear::Load(source, prefix + "ffn_gate", width, ffn_));
  }
  KVCACHE_ASSIGN_OR_RETURN(down_, TowerLinear::Load(source, down, ffn_, width));
  return Status::Ok();
}

void TowerLayer::StoreKeys(Pass& pass, const PieceOfPicture& piece, const TensorView& x) const {
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(x.dims[0]);
  const TensorView k = pass.TakeHeads(head_dim_, heads_);
  const TensorView v = pass.TakeHeads(head_dim_, heads_);
  pass.Normalize(x, attention_norm_, h);
  Multiply(pass, h, {{k_, k}, {v_, v}});
  if (k_norm_.has_value()) pass.RmsNorm(k, *k_norm_, k);
  if (v_norm_.has_value()) pass.RmsNorm(v, *v_norm_, v);
  piece.rotation.Run(pass, piece.order, piece.first, k);
  piece.attention.Store(pass, piece.first, k, v);
}

// h = o · attention(h)
void TowerLayer::Attend(Pass& pass, const PieceOfPicture& piece, const TensorView& h) const {
  const Pass::Scope scope(pass);
  const TensorView q = pass.TakeHeads(head_dim_, heads_);
  const TensorView out = pass.TakeHeads(head_dim_, heads_);
  Multiply(pass, h, {{q_, q}});
  if (q_norm_.has_value()) pass.RmsNorm(q, *q_norm_, q);
  piece.rotation.Run(pass, piece.order, piece.first, q);
  piece.attention.Attend(pass, piece.first, q, reach_, scale_, out);
  Multiply(pass, out, {{o_, h}});
}

// h = ffn(h)
void TowerLayer::FeedForward(Pass& pass, const TensorView& h) const {
  const Pass::Scope scope(pass);
  const TensorView up = pass.TakeHidden(ffn_);
  const TensorView gate = pass.TakeHidden(gate_.has_value() ? ffn_ : 0);
  if (gate_.has_value()) {
    Multiply(pass, h, {{up_, up}, {*gate_, gate}});
    pass.Gate(gate, up, activation_);
    return Multiply(pass, gate, {{down_, h}});
  }
  Multiply(pass, h, {{up_, up}});
  pass.Activate(up, activation_);
  Multiply(pass, up, {{down_, h}});
}

void TowerLayer::Run(Pass& pass, const PieceOfPicture& piece, const TensorView& x) const {
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(x.dims[0]);
  pass.Normalize(x, attention_norm_, h);
  Attend(pass, piece, h);
  if (attention_result_norm_.has_value()) pass.Normalize(h, *attention_result_norm_, h);
  pass.Add(x, h);
  pass.Normalize(x, ffn_norm_, h);
  FeedForward(pass, h);
  if (ffn_result_norm_.has_value()) pass.Normalize(h, *ffn_result_norm_, h);
  pass.Add(x, h);
}

}  // namespace kvcache::vision
