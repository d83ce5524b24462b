// The views of the states of a batch that has as many tokens of each sequence.
#include <array>
#include <span>
#include <string>

#include "base/strings.h"
#include "cache/recurrent/recurrent_cache_impl.h"

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

Status RecurrentCacheImpl::CheckViews() const {
  if (HasDrafts()) {
    return {StatusCode::kUnsupported,
            "a view of the states in a pass of drafts; use RecurrentCache::Segments"};
  }
  if (batch_.divided()) {
    return {StatusCode::kUnsupported,
            "a view of the states of a batch with a capture inside; use RecurrentCache::Segments"};
  }
  if (batch_.tokens_per_sequence() > 0) return Status::Ok();
  return {StatusCode::kUnsupported,
          "a view of the states of a batch whose sequences have different numbers of tokens; use "
          "RecurrentCache::Segments"};
}

Result<TensorView> RecurrentCacheImpl::Read(StateStore& store, int layer,
                                            std::span<const std::int64_t> dims) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  KVCACHE_RETURN_IF_ERROR(CheckViews());
  KVCACHE_RETURN_IF_ERROR(CheckShape(store.values(), dims));
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, store.Read(index, from_));
  return Shaped(view, dims);
}

Result<TensorView> RecurrentCacheImpl::Next(StateStore& store, int layer,
                                            std::span<const std::int64_t> dims) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  KVCACHE_RETURN_IF_ERROR(CheckViews());
  KVCACHE_RETURN_IF_ERROR(CheckShape(store.values(), dims));
  const auto count = static_cast<std::int32_t>(to_.size());
  auto view =
      mode_ == ForwardMode::kReserve ? store.Reserve(index, count) : store.Target(index, to_);
  if (!view.ok()) return view;
  return Shaped(*view, dims);
}

Status RecurrentCacheImpl::Update(StateStore& store, int layer, const TensorView& state) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  KVCACHE_RETURN_IF_ERROR(CheckViews());
  KVCACHE_ASSIGN_OR_RETURN(const TensorView flat,
                           Flattened(state, store.values(), static_cast<int>(to_.size())));
  if (mode_ == ForwardMode::kReserve) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(store.Write(index, to_, flat));
  CountWritten(index, &store == &conv_ ? StateKind::kConvolution : StateKind::kRecurrent);
  return Status::Ok();
}

Result<TensorView> RecurrentCacheImpl::ConvState(int layer) {
  const std::array<std::int64_t, 2> dims{recurrent_.conv_dim, recurrent_.conv_channels};
  return Read(conv_, layer, dims);
}
Result<TensorView> RecurrentCacheImpl::RecurrentState(int layer,
                                                      std::span<const std::int64_t> dims) {
  return Read(state_, layer, dims);
}
Result<TensorView> RecurrentCacheImpl::NextConvState(int layer) {
  const std::array<std::int64_t, 2> dims{recurrent_.conv_dim, recurrent_.conv_channels};
  return Next(conv_, layer, dims);
}
Result<TensorView> RecurrentCacheImpl::NextRecurrentState(int layer,
                                                          std::span<const std::int64_t> dims) {
  return Next(state_, layer, dims);
}
Status RecurrentCacheImpl::UpdateConvState(int layer, const TensorView& state) {
  return Update(conv_, layer, state);
}
Status RecurrentCacheImpl::UpdateRecurrentState(int layer, const TensorView& state) {
  return Update(state_, layer, state);
}

}  // namespace kvcache
