#include "cache/recurrent/recurrent_views.h"

#include <string>

#include "base/strings.h"

namespace kvcache {
namespace {

std::string DimsText(std::span<const std::int64_t> dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  }
  return text + "]";
}

// Checks that the product of `dims` is the state's size.
Status CheckShape(std::int64_t values, std::span<const std::int64_t> dims) {
  std::int64_t size = 1;
  for (const std::int64_t dim : dims) {
    if (dim < 1 || __builtin_mul_overflow(size, dim, &size)) size = -1;
    if (size < 0) break;
  }
  if (dims.size() < TensorView::kMaxRank && size == values) return Status::Ok();
  return Invalid(
      StrCat("the state's dims are ", DimsText(dims), "; must be at most 3 with product ", values));
}

// Returns a view of shape [dims…, n] of [values, n]. REQUIRES: CheckShape accepted `dims`.
TensorView Shaped(const TensorView& view, std::span<const std::int64_t> dims) {
  TensorView shaped = view;
  std::size_t axis = 0;
  std::int64_t stride = view.stride_bytes[0];
  for (; axis < dims.size(); ++axis) {
    shaped.dims[axis] = dims[axis];
    shaped.stride_bytes[axis] = stride;
    stride *= dims[axis];
  }
  shaped.dims[axis] = view.dims[1];
  shaped.stride_bytes[axis] = view.stride_bytes[1];
  for (++axis; axis < TensorView::kMaxRank; ++axis) {
    shaped.dims[axis] = 1;
    shaped.stride_bytes[axis] = view.stride_bytes[1] * view.dims[1];
  }
  return shaped;
}

// Returns a view of shape [values, n] of one of any shape whose last dimension is n.
Result<TensorView> Flattened(const TensorView& view, std::int64_t values, std::int64_t sequences) {
  std::int64_t size = 1;
  int axis = 0;
  bool dense = true;
  for (; axis < TensorView::kMaxRank && size < values; ++axis) {
    const std::int64_t expected = size * InfoOf(view.dtype).block_bytes;
    dense = dense && (view.dims[axis] == 1 || view.stride_bytes[axis] == expected);
    size *= view.dims[axis];
  }
  while (axis < TensorView::kMaxRank - 1 && view.dims[axis] == 1) ++axis;
  const bool one = axis >= TensorView::kMaxRank;
  if (size != values || !dense || view.elements() != values * sequences ||
      (one ? 1 : view.dims[axis]) != sequences) {
    return Invalid(StrCat("the state's dims are ", DimsText(view.dims), "; must be ", values,
                          " dense values for each of ", sequences, " sequences"));
  }
  TensorView flat = TensorView::Dense(view.data, view.dtype, values, sequences);
  if (sequences > 1) flat.stride_bytes[1] = view.stride_bytes[axis];
  return flat;
}

}  // namespace

Result<TensorView> ReadStates(RecurrentParts& parts, const RecurrentPass& pass, StateKind kind,
                              int layer, std::span<const std::int64_t> dims) {
  StateStore& store = parts.StoreOf(kind);
  KVCACHE_ASSIGN_OR_RETURN(const int index, pass.IndexOf(layer));
  KVCACHE_RETURN_IF_ERROR(pass.CheckViews());
  KVCACHE_RETURN_IF_ERROR(CheckShape(store.values(), dims));
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, store.Read(index, pass.states().before()));
  return Shaped(view, dims);
}

Result<TensorView> NextStates(RecurrentParts& parts, const RecurrentPass& pass, StateKind kind,
                              int layer, std::span<const std::int64_t> dims) {
  StateStore& store = parts.StoreOf(kind);
  KVCACHE_ASSIGN_OR_RETURN(const int index, pass.IndexOf(layer));
  KVCACHE_RETURN_IF_ERROR(pass.CheckViews());
  KVCACHE_RETURN_IF_ERROR(CheckShape(store.values(), dims));
  const std::span<const std::int32_t> after = pass.states().after();
  const auto count = static_cast<std::int32_t>(after.size());
  auto view = pass.reserves() ? store.Reserve(index, count) : store.Target(index, after);
  if (!view.ok()) return view;
  return Shaped(*view, dims);
}

Status UpdateStates(RecurrentParts& parts, RecurrentPass& pass, StateKind kind, int layer,
                    const TensorView& state) {
  StateStore& store = parts.StoreOf(kind);
  KVCACHE_ASSIGN_OR_RETURN(const int index, pass.IndexOf(layer));
  KVCACHE_RETURN_IF_ERROR(pass.CheckViews());
  const std::span<const std::int32_t> after = pass.states().after();
  KVCACHE_ASSIGN_OR_RETURN(const TensorView flat,
                           Flattened(state, store.values(), static_cast<int>(after.size())));
  if (pass.reserves()) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(store.Write(index, after, flat));
  pass.CountWritten(index, kind);
  return Status::Ok();
}

}  // namespace kvcache
