#include "model/graph/mamba2.h"

#include <string>

namespace kvcache {

Status Mamba2::LoadScan(WeightReader& reader, const std::string& prefix,
                        const RecurrentParams& sizes) {
  KVCACHE_ASSIGN_OR_RETURN(
      conv.taps, reader.FloatTable(prefix + "ssm_conv1d.weight", sizes.taps, sizes.channels));
  if (reader.Has(prefix + "ssm_conv1d.bias")) {
    KVCACHE_ASSIGN_OR_RETURN(conv.bias, reader.Vector(prefix + "ssm_conv1d.bias", sizes.channels));
  }
  KVCACHE_ASSIGN_OR_RETURN(dt_bias, reader.Vector(prefix + "ssm_dt.bias", sizes.heads));
  KVCACHE_ASSIGN_OR_RETURN(const TensorView a, reader.FloatTable(prefix + "ssm_a", 1, sizes.heads));
  rates = TensorView::Dense(a.data, DType::kF32, sizes.heads);
  KVCACHE_ASSIGN_OR_RETURN(skip, reader.FloatRows(prefix + "ssm_d", 1, sizes.heads));
  return Status::Ok();
}

Status Mamba2::LoadNorms(WeightReader& reader, const std::string& prefix,
                         const RecurrentParams& sizes, float epsilon) {
  const std::int64_t each = sizes.inner() / sizes.groups;
  KVCACHE_ASSIGN_OR_RETURN(const TensorView weights,
                           reader.FloatTable(prefix + "ssm_norm.weight", each, sizes.groups));
  for (std::int64_t group = 0; group < sizes.groups; ++group) {
    std::byte* const weight = weights.data + group * weights.stride_bytes[1];
    norms.push_back({TensorView::Dense(weight, DType::kF32, each), epsilon});
  }
  return Status::Ok();
}

Result<Mamba2> Mamba2::Load(WeightReader& reader, const LayerParams& params,
                            const RecurrentParams& sizes, int layer, Mamba2Norm norm) {
  const std::string prefix = LayerPrefix(layer);
  const std::int64_t hidden_size = params.hidden_size;
  Mamba2 m;
  KVCACHE_ASSIGN_OR_RETURN(m.in, reader.LinearParts(prefix + "ssm_in", hidden_size,
                                                    {sizes.inner(), sizes.channels, sizes.heads}));
  KVCACHE_RETURN_IF_ERROR(m.LoadScan(reader, prefix, sizes));
  if (norm == Mamba2Norm::kRequired || reader.Has(prefix + "ssm_norm.weight")) {
    KVCACHE_RETURN_IF_ERROR(m.LoadNorms(reader, prefix, sizes, params.norm_epsilon));
  }
  KVCACHE_ASSIGN_OR_RETURN(m.out, reader.Linear(prefix + "ssm_out", sizes.inner(), hidden_size));
  return m;
}

void Mamba2::Run(Pass& pass, const RecurrentParams& sizes, int layer, const TensorView& h,
                 const TensorView& to) const {
  const Pass::Scope scope(pass);
  const TensorView z = pass.TakeHeads(sizes.v_dim, sizes.heads);
  const TensorView raw = pass.TakeHidden(sizes.channels);
  const TensorView xbc = pass.TakeHidden(sizes.channels);
  const TensorView steps = pass.TakeHidden(sizes.heads);
  const TensorView decays = pass.TakeHidden(sizes.heads);
  const TensorView y = pass.TakeHeads(sizes.v_dim, sizes.heads);

  pass.Linear(h, {{in[0], z}, {in[1], raw}, {in[2], steps}});
  pass.ShortConv(layer, raw, conv, xbc);
  pass.Activate(xbc, Activation::kSilu);
  pass.DecayRates(steps, dt_bias, rates, steps, decays);
  pass.Scan(
      layer,
      {.keys = pass.HeadsOf(xbc, sizes.inner(), sizes.k_dim, sizes.groups),
       .queries = pass.HeadsOf(xbc, sizes.inner() + sizes.key_size(), sizes.k_dim, sizes.groups),
       .values = pass.HeadsOf(xbc, 0, sizes.v_dim, sizes.heads),
       .decays = decays,
       .steps = steps},
      {.rule = ScanRule::kAdd, .skip = skip}, y);
  pass.Gate(z, y, Activation::kSilu);
  // A group's heads are adjacent, so each group is one row per token, normed with its own weights.
  const std::int64_t each = sizes.inner() / sizes.groups;
  for (std::size_t group = 0; group < norms.size(); ++group) {
    const TensorView part = pass.HeadsOf(z, static_cast<std::int64_t>(group) * each, each, 1);
    pass.RmsNorm(part, norms[group], part);
  }
  pass.Linear(z, {{out, to}});
}

}  // namespace kvcache
