#include "model/graph/attention/latent_attention.h"

namespace kvcache {
namespace {

// Returns the columns of one head, [d0, tokens], of a view [d0, tokens, heads].
TensorView HeadColumns(const TensorView& view, std::int64_t head) {
  return TensorView::Dense(view.data + head * view.stride_bytes[2], DType::kF32, view.dims[0],
                           view.dims[1]);
}

// Returns [d0, 1, tokens] as [d0, heads, tokens], with the same values for every head.
TensorView BroadcastHeads(TensorView view, std::int64_t heads) {
  view.dims[1] = heads;
  view.stride_bytes[1] = 0;
  return view;
}

}  // namespace

KvShape LatentShape::kv() const {
  if (absorbed) {
    return {1, static_cast<int>(kv_rank + rope_dim), static_cast<int>(kv_rank), true};
  }
  return {static_cast<int>(heads), static_cast<int>(q_dim()), static_cast<int>(v_dim)};
}

Result<LatentAttention> LatentAttention::Load(WeightReader& reader, const std::string& prefix,
                                              const LatentShape& shape) {
  const LatentShape& s = shape;
  LatentAttention a;
  a.shape_ = s;
  std::string query = prefix + "attn_q";
  if (s.q_rank > 0) {
    KVCACHE_ASSIGN_OR_RETURN(a.q_down_,
                             reader.Linear(prefix + "attn_q_a", s.hidden_size, s.q_rank));
    KVCACHE_ASSIGN_OR_RETURN(a.q_norm_,
                             reader.RmsNorm(prefix + "attn_q_a_norm", s.q_rank, s.norm_epsilon));
    query += "_b";
  }
  KVCACHE_ASSIGN_OR_RETURN(
      a.q_up_, reader.Linear(query, s.q_rank > 0 ? s.q_rank : s.hidden_size, s.heads * s.q_dim()));
  KVCACHE_ASSIGN_OR_RETURN(
      a.down_, reader.Linear(prefix + "attn_kv_a_mqa", s.hidden_size, s.kv_rank + s.rope_dim));
  KVCACHE_ASSIGN_OR_RETURN(a.norm_,
                           reader.RmsNorm(prefix + "attn_kv_a_norm", s.kv_rank, s.norm_epsilon));
  if (s.absorbed) {
    KVCACHE_ASSIGN_OR_RETURN(
        a.k_up_, reader.Stack(prefix + "attn_k_b.weight", s.nope_dim, s.kv_rank, s.heads));
    KVCACHE_ASSIGN_OR_RETURN(a.v_up_,
                             reader.Stack(prefix + "attn_v_b.weight", s.kv_rank, s.v_dim, s.heads));
    for (const char* name : {"attn_k_b.weight", "attn_v_b.weight"}) {
      reader.ForgetSite(prefix + name);  // EachHead multiplies by them
    }
  } else {
    KVCACHE_ASSIGN_OR_RETURN(
        a.kv_up_, reader.Linear(prefix + "attn_kv_b", s.kv_rank, s.heads * (s.nope_dim + s.v_dim)));
  }
  KVCACHE_ASSIGN_OR_RETURN(a.o_,
                           reader.Linear(prefix + "attn_output", s.heads * s.v_dim, s.hidden_size));
  a.outputs_.resize(static_cast<std::size_t>(s.heads));
  a.groups_.resize(static_cast<std::size_t>(s.heads));
  return a;
}

void LatentAttention::Queries(Pass& pass, const TensorView& h, RopeParams rope,
                              const TensorView& q) const {
  const Pass::Scope scope(pass);
  if (q_down_.has_value()) {
    const TensorView low = pass.TakeHidden(shape_.q_rank);
    pass.Linear(h, {{*q_down_, low}});
    pass.RmsNorm(low, q_norm_, low);
    pass.Linear(low, {{q_up_, q}});
  } else {
    pass.Linear(h, {{q_up_, q}});
  }
  // A query is [n_h | r_h]: only its end is rotated.
  rope.first = static_cast<int>(shape_.nope_dim);
  pass.Rope(q, rope);
}

// latent [kv_rank + rope_dim, 1, batch] = [c | t]; normed [kv_rank, batch] = c again, dense.
void LatentAttention::Latents(Pass& pass, const TensorView& h, RopeParams rope,
                              const TensorView& latent, const TensorView& normed) const {
  pass.Linear(h, {{down_, latent}});
  // The norm needs dense rows, and c is a part of longer rows: it is copied out, normed, copied
  // back.
  const TensorView c = Slice(latent, 0, shape_.kv_rank);
  pass.Copy(c, normed);
  pass.RmsNorm(normed, norm_, normed);
  pass.Copy(normed, c);
  rope.first = static_cast<int>(shape_.kv_rank);
  pass.Rope(latent, rope);
}

void LatentAttention::EachHead(Pass& pass, const LinearWeight& stack, const TensorView& x,
                               const TensorView& y) {
  if (!pass.runs()) return;
  for (std::size_t head = 0; head < groups_.size(); ++head) {
    const auto index = static_cast<std::int64_t>(head);
    outputs_[head] = {&stack, HeadColumns(y, index), index};
    groups_[head] = {HeadColumns(x, index), std::span(outputs_).subspan(head, 1)};
  }
  pass.Check(pass.backend().LinearGroups(groups_));
}

void LatentAttention::Absorbed(Pass& pass, int layer, const TensorView& q, const TensorView& latent,
                               float scale, const TensorView& answer) {
  const LatentShape& s = shape_;
  const std::int64_t batch = pass.batch();
  // [dim, tokens, heads]: the form that the heads' matrices read and write.
  const TensorView q_nope = pass.Take(s.nope_dim, batch, s.heads);
  const TensorView q_latent = pass.Take(s.kv_rank, batch, s.heads);
  const TensorView answers = pass.Take(s.v_dim, batch, s.heads);
  const TensorView absorbed = pass.TakeHeads(s.kv_rank + s.rope_dim, s.heads);
  const TensorView sums = pass.TakeHeads(s.kv_rank, s.heads);
  pass.Copy(TransposeHeads(Slice(q, 0, s.nope_dim)), q_nope);
  EachHead(pass, *k_up_, q_nope, q_latent);
  pass.Copy(TransposeHeads(q_latent), Slice(absorbed, 0, s.kv_rank));
  pass.Copy(Slice(q, s.nope_dim, s.rope_dim), Slice(absorbed, s.kv_rank, s.rope_dim));
  pass.Attention(layer, absorbed, latent, ValuesInKeys(latent, s.kv_rank), {.scale = scale}, sums);
  pass.Copy(TransposeHeads(sums), q_latent);
  EachHead(pass, *v_up_, q_latent, answers);
  pass.Copy(TransposeHeads(answers), answer);
}

void LatentAttention::Expanded(Pass& pass, int layer, const TensorView& q, const TensorView& latent,
                               const TensorView& c, float scale, const TensorView& answer) const {
  const LatentShape& s = shape_;
  const TensorView both = pass.TakeHeads(s.nope_dim + s.v_dim, s.heads);
  const TensorView k = pass.TakeHeads(s.q_dim(), s.heads);
  const TensorView v = pass.TakeHeads(s.v_dim, s.heads);
  pass.Linear(c, {{kv_up_, both}});
  pass.Copy(Slice(both, 0, s.nope_dim), Slice(k, 0, s.nope_dim));
  pass.Copy(BroadcastHeads(Slice(latent, s.kv_rank, s.rope_dim), s.heads),
            Slice(k, s.nope_dim, s.rope_dim));
  pass.Copy(Slice(both, s.nope_dim, s.v_dim), v);
  pass.Attention(layer, q, k, v, {.scale = scale}, answer);
}

void LatentAttention::Run(Pass& pass, int layer, const TensorView& h, RopeParams rope, float scale,
                          const TensorView& out) {
  const Pass::Scope scope(pass);
  const TensorView q = pass.TakeHeads(shape_.q_dim(), shape_.heads);
  const TensorView latent = pass.TakeHeads(shape_.kv_rank + shape_.rope_dim, 1);
  const TensorView c = pass.TakeHeads(shape_.kv_rank, 1);
  const TensorView answer = pass.TakeHeads(shape_.v_dim, shape_.heads);
  Queries(pass, h, rope, q);
  Latents(pass, h, rope, latent, c);
  if (shape_.absorbed) {
    Absorbed(pass, layer, q, latent, scale, answer);
  } else {
    Expanded(pass, layer, q, latent, c, scale, answer);
  }
  pass.Linear(answer, {{o_, out}});
}

}  // namespace kvcache
