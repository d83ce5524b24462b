#include "model/graph/layer_inputs.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.h"

namespace kvcache {

Result<LayerInputs> LayerInputs::Load(WeightReader& reader, const LayerParams& params, int size) {
  const std::int64_t all = std::int64_t{size} * params.layers;
  LayerInputs inputs;
  inputs.size_ = size;
  inputs.layers_ = params.layers;
  // The last tokens may have no row: those of images and sound in gemma3n.
  const std::string table = "per_layer_token_embd.weight";
  const std::int64_t rows = std::min<std::int64_t>(reader.Rows(table), params.vocabulary);
  KVCACHE_ASSIGN_OR_RETURN(inputs.table_,
                           reader.Table(table, all, std::max<std::int64_t>(rows, 1)));
  KVCACHE_ASSIGN_OR_RETURN(inputs.model_,
                           reader.Linear("per_layer_model_proj", params.hidden_size, all));
  KVCACHE_ASSIGN_OR_RETURN(inputs.norm_,
                           reader.RmsNorm("per_layer_proj_norm", size, params.norm_epsilon));
  return inputs;
}

void LayerInputs::Compute(Pass& pass, std::span<const std::int32_t> tokens, const TensorView& x) {
  values_ = pass.TakeHeads(size_, layers_);
  const TensorView all = Flatten(values_);
  pass.Linear(x, {{model_, all}});
  pass.Scale(all, 1.0f / std::sqrt(static_cast<float>(x.dims[0])));
  pass.RmsNorm(values_, norm_, values_);
  {
    const Pass::Scope scope(pass);
    const TensorView embedded = pass.TakeHidden(all.dims[0]);
    // Reserved when measured, so that a pass allocates nothing.
    if (pass.measuring()) rows_.reserve(static_cast<std::size_t>(pass.batch()));
    rows_.assign(tokens.begin(), tokens.end());
    for (std::int32_t& row : rows_) row = row < table_.dims[1] ? row : 0;
    pass.Embed(table_, rows_, embedded);
    pass.Scale(embedded, std::sqrt(static_cast<float>(size_)));
    pass.Add(all, embedded);
  }
  pass.Scale(all, 1.0f / std::sqrt(2.0f));
}

void LayerInputs::CopyTo(Pass& pass, int layer, const TensorView& to) const {
  // values_ is [P, layers, batch]; a layer's part is one row per token, strided by all layers.
  TensorView from = WithOffset(values_, layer * values_.stride_bytes[1]);
  from.dims = {values_.dims[0], values_.dims[2], 1, 1};
  from.stride_bytes[1] = values_.stride_bytes[2];
  pass.Copy(from, to);
}

Result<InputGate> InputGate::Load(WeightReader& reader, const LayerParams& params, int size,
                                  int layer) {
  const std::string prefix = LayerPrefix(layer);
  InputGate input;
  KVCACHE_ASSIGN_OR_RETURN(input.gate,
                           reader.Linear(prefix + "inp_gate", params.hidden_size, size));
  KVCACHE_ASSIGN_OR_RETURN(input.back, reader.Linear(prefix + "proj", size, params.hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(input.post_norm, reader.RmsNorm(prefix + "post_norm", params.hidden_size,
                                                           params.norm_epsilon));
  return input;
}

void InputGate::Run(Pass& pass, const LayerInputs& inputs, int layer, const TensorView& y,
                    const TensorView& out) const {
  const Pass::Scope scope(pass);
  const TensorView gated = pass.TakeHidden(inputs.size());
  const TensorView input = pass.TakeHidden(inputs.size());
  inputs.CopyTo(pass, layer, input);
  pass.Linear(y, {{gate, gated}});
  pass.Gate(gated, input, Activation::kGelu);
  pass.Linear(gated, {{back, out}});
  pass.RmsNorm(out, post_norm, out);
}

}  // namespace kvcache
