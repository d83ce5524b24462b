#include "model/families/gemma3n_states.h"

#include <array>
#include <string>

#include "base/errors.h"

namespace kvcache {
namespace {

constexpr float kTinyEpsilon = 1e-30f;  // a length of zero gives zeros

}  // namespace

Result<VectorLengths> VectorLengths::Make(Backend& backend, int layer, std::int64_t size) {
  VectorLengths lengths;
  const auto count = static_cast<std::size_t>(size);
  KVCACHE_ASSIGN_OR_RETURN(lengths.ones_, PlacedVector::Make(backend, layer, size, 1.0f));
  lengths.shares_.assign(count, 1.0f / static_cast<float>(size));
  lengths.norm_ = {lengths.ones_.view(), kTinyEpsilon};
  KVCACHE_ASSIGN_OR_RETURN(
      lengths.mean_.weight,
      backend.MakeLinear(TensorView::Dense(lengths.shares_.data(), DType::kF32, size, 1)));
  return lengths;
}

void VectorLengths::Split(Pass& pass, const TensorView& x, const TensorView& direction,
                          const TensorView& length) const {
  const Pass::Scope scope(pass);
  const TensorView product = pass.TakeHidden(x.dims[0]);
  Direct(pass, x, direction);
  pass.Copy(direction, product);
  pass.Multiply(product, x);
  pass.Linear(product, {{mean_, length}});
}

// x × weight is the normed x × weight, times the length of x.
void VectorLengths::Scale(Pass& pass, const TensorView& x, const TensorView& weight,
                          const TensorView& out) const {
  const Pass::Scope scope(pass);
  const TensorView direction = pass.TakeHidden(x.dims[0]);
  const TensorView length = pass.TakeHidden(1);
  Split(pass, x, direction, length);
  pass.RmsNorm(x, {weight, kTinyEpsilon}, out);
  pass.Multiply(out, length);
}

Result<AltUp> AltUp::Load(WeightReader& reader, Backend& backend, std::int64_t hidden_size) {
  AltUp altup;
  altup.hidden_size_ = hidden_size;
  KVCACHE_ASSIGN_OR_RETURN(
      altup.spread_, reader.Stack("altup_proj.weight", hidden_size, hidden_size, kStates - 1));
  KVCACHE_ASSIGN_OR_RETURN(altup.merge_, reader.Stack("altup_unembd_proj.weight", hidden_size,
                                                      hidden_size, kStates - 1));
  for (const char* name : {"altup_proj.weight", "altup_unembd_proj.weight"}) {
    reader.ForgetSite(name);  // Spread and Merge multiply by them
  }
  KVCACHE_ASSIGN_OR_RETURN(altup.lengths_,
                           VectorLengths::Make(backend, Backend::kBeforeLayers, hidden_size));
  return altup;
}

Result<AltUp::Layer> AltUp::LoadLayer(WeightReader& reader, Backend& backend,
                                      const LayerParams& params, int layer) const {
  const std::string prefix = LayerPrefix(layer) + "altup_";
  Layer l;
  KVCACHE_ASSIGN_OR_RETURN(
      l.router_norm, reader.RmsNorm(prefix + "router_norm", hidden_size_, params.norm_epsilon));
  KVCACHE_ASSIGN_OR_RETURN(l.router, reader.Linear(prefix + "router", hidden_size_, kStates));
  KVCACHE_ASSIGN_OR_RETURN(l.predict,
                           reader.Linear(prefix + "predict_coef", kStates, kStates * kStates));
  KVCACHE_ASSIGN_OR_RETURN(l.correct, reader.Linear(prefix + "correct_coef", kStates, kStates));
  KVCACHE_ASSIGN_OR_RETURN(l.ones, PlacedVector::Make(backend, layer, kStates, 1.0f));
  l.correct.bias = l.ones.view();
  return l;
}

void AltUp::Spread(Pass& pass, const TensorView& x, const TensorView& states) const {
  const Pass::Scope scope(pass);
  const TensorView direction = pass.TakeHidden(hidden_size_);
  const TensorView length = pass.TakeHidden(1);
  lengths_.Split(pass, x, direction, length);
  pass.Copy(x, StateOf(states, 0));
  std::array<LinearOutput, kStates - 1> outputs;
  for (int i = 1; i < kStates; ++i) {
    outputs[static_cast<std::size_t>(i - 1)] = {spread_.get(), StateOf(states, i), i - 1};
  }
  if (pass.runs()) pass.Check(pass.backend().Linear(x, outputs));
  for (int i = 1; i < kStates; ++i) {
    lengths_.Direct(pass, StateOf(states, i), StateOf(states, i));
    pass.Multiply(StateOf(states, i), length);
  }
}

void AltUp::Merge(Pass& pass, const TensorView& states, const TensorView& x) const {
  const Pass::Scope scope(pass);
  const TensorView part = pass.TakeHidden(hidden_size_);
  const TensorView length = pass.TakeHidden(1);
  lengths_.Split(pass, StateOf(states, 0), part, length);
  pass.Copy(StateOf(states, 0), x);
  for (int i = 1; i < kStates; ++i) {
    const LinearOutput output[] = {{merge_.get(), part, i - 1}};
    if (pass.runs()) pass.Check(pass.backend().Linear(StateOf(states, i), output));
    lengths_.Direct(pass, part, part);
    pass.Multiply(part, length);
    pass.Add(x, part);
  }
  pass.Scale(x, 1.0f / kStates);
}

void AltUp::Coefficients(Pass& pass, const Layer& layer, const Projection& by, const TensorView& y,
                         const TensorView& planes) const {
  const Pass::Scope scope(pass);
  const std::int64_t outputs = planes.dims[1];
  const TensorView values = pass.TakeHidden(kStates);
  const TensorView products = pass.TakeHidden(outputs);
  const TensorView normed = pass.TakeHidden(hidden_size_);
  pass.RmsNorm(y, layer.router_norm, normed);
  pass.Scale(normed, 1.0f / static_cast<float>(hidden_size_));
  pass.Linear(normed, {{layer.router, values}});
  pass.SoftCap(values, 1.0f);  // tanh
  pass.Linear(values, {{by, products}});
  // Rows of one value each: [1, batch, outputs], with a token's outputs side by side.
  TensorView from = TensorView::Dense(products.data, DType::kF32, 1, pass.batch(), outputs);
  from.stride_bytes[1] = products.stride_bytes[1];
  from.stride_bytes[2] = products.stride_bytes[0];
  pass.Copy(from, TensorView::Dense(planes.data, DType::kF32, 1, pass.batch(), outputs));
}

void AltUp::Predict(Pass& pass, const Layer& layer, const TensorView& states,
                    const TensorView& predictions) const {
  const Pass::Scope scope(pass);
  const std::int64_t columns = pass.batch() * kStates;
  const TensorView planes = pass.Take(pass.batch(), kStates * kStates);
  const TensorView products = pass.Take(hidden_size_, pass.batch(), kStates);
  Coefficients(pass, layer, layer.predict, StateOf(states, 0), planes);
  for (int b = 0; b < kStates; ++b) {
    // The coefficients of prediction b, first those of state 0 for all tokens.
    const TensorView of_b = WithOffset(planes, b * kStates * planes.stride_bytes[1]);
    pass.Copy(states, products);
    pass.Multiply(TensorView::Dense(products.data, DType::kF32, hidden_size_, columns),
                  TensorView::Dense(of_b.data, DType::kF32, 1, columns));
    pass.Copy(StateOf(states, b), StateOf(predictions, b));
    for (int a = 0; a < kStates; ++a) pass.Add(StateOf(predictions, b), StateOf(products, a));
  }
}

void AltUp::Correct(Pass& pass, const Layer& layer, const TensorView& predictions,
                    const TensorView& y, const TensorView& states) const {
  const Pass::Scope scope(pass);
  const TensorView planes = pass.Take(pass.batch(), kStates);
  const TensorView found = pass.TakeHidden(hidden_size_);  // y - p_0
  const TensorView product = pass.TakeHidden(hidden_size_);
  Coefficients(pass, layer, layer.correct, y, planes);
  pass.Copy(StateOf(predictions, 0), found);
  pass.Scale(found, -1.0f);
  pass.Add(found, y);
  for (int b = 0; b < kStates; ++b) {
    const TensorView factors = WithOffset(planes, b * planes.stride_bytes[1]);
    pass.Copy(found, product);
    pass.Multiply(product, TensorView::Dense(factors.data, DType::kF32, 1, pass.batch()));
    pass.Copy(StateOf(predictions, b), StateOf(states, b));
    pass.Add(StateOf(states, b), product);
  }
}

}  // namespace kvcache
