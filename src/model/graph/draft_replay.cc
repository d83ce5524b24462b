#include "model/graph/draft_replay.h"

namespace kvcache {
namespace {

// Returns values [offset, offset + d0 × d1) of each draft, as [d0, d1, batch].
TensorView Part(const TensorView& inputs, std::int64_t offset, std::int64_t d0, std::int64_t d1) {
  TensorView view = TensorView::Dense(inputs.data + BytesOf(DType::kF32, offset), DType::kF32, d0,
                                      d1, inputs.dims[1]);
  view.stride_bytes[2] = inputs.stride_bytes[1];
  view.stride_bytes[3] = inputs.stride_bytes[1] * inputs.dims[1];
  return view;
}

// Returns values [offset, offset + d0) of each draft, as [d0, batch].
TensorView Part(const TensorView& inputs, std::int64_t offset, std::int64_t d0) {
  TensorView view = TensorView::Dense(inputs.data + BytesOf(DType::kF32, offset), DType::kF32, d0,
                                      inputs.dims[1]);
  view.stride_bytes[1] = inputs.stride_bytes[1];
  view.stride_bytes[2] = view.stride_bytes[3] = inputs.stride_bytes[1] * inputs.dims[1];
  return view;
}

struct ScanSizes {
  std::int64_t k_dim, v_dim, groups, heads;
  std::int64_t values() const { return k_dim * groups + (v_dim + 2) * heads; }
};

// Returns the scan's part of the inputs, which is the last one. There are no queries.
ScanInputs ScanPart(const TensorView& inputs, const ScanSizes& size) {
  const std::int64_t keys = inputs.dims[0] - size.values();
  const std::int64_t values = keys + size.k_dim * size.groups;
  const std::int64_t decays = values + size.v_dim * size.heads;
  return {.keys = Part(inputs, keys, size.k_dim, size.groups),
          .queries = {},
          .values = Part(inputs, values, size.v_dim, size.heads),
          .decays = Part(inputs, decays, size.heads),
          .steps = Part(inputs, decays + size.heads, size.heads)};
}

}  // namespace

Status KeepConvInputs(Backend& backend, const TensorView& kept, const TensorView& x) {
  return backend.CopyValues(x, Part(kept, 0, x.dims[0]));
}

Status KeepScanInputs(Backend& backend, const TensorView& kept, const ScanInputs& inputs) {
  const ScanInputs to = ScanPart(kept, {.k_dim = inputs.keys.dims[0],
                                        .v_dim = inputs.values.dims[0],
                                        .groups = inputs.keys.dims[1],
                                        .heads = inputs.values.dims[1]});
  KVCACHE_RETURN_IF_ERROR(backend.CopyValues(inputs.keys, to.keys));
  KVCACHE_RETURN_IF_ERROR(backend.CopyValues(inputs.values, to.values));
  KVCACHE_RETURN_IF_ERROR(backend.CopyValues(inputs.decays, to.decays));
  return backend.CopyValues(inputs.steps, to.steps);
}

DraftReplayer::DraftReplayer(Backend& backend, const RecurrentParams& params,
                             const ScanOptions& scan)
    : backend_(&backend),
      taps_(params.taps),
      channels_(params.channels),
      k_dim_(params.k_dim),
      v_dim_(params.v_dim),
      groups_(params.groups),
      heads_(params.heads),
      scan_(scan) {
  scan_.skip = {};
}

std::int64_t DraftReplayer::inputs() const {
  const std::int64_t scan = ScanSizes{k_dim_, v_dim_, groups_, heads_}.values();
  return (taps_ > 0 ? channels_ : 0) + (k_dim_ > 0 ? scan : 0);
}

Status DraftReplayer::operator()(const DraftReplay& replay) const {
  if (!replay.conv.segments.empty()) {
    const TensorView x = Part(replay.inputs, 0, channels_);
    const ConvTaps taps{.taps = TensorView::Dense(nullptr, DType::kF32, taps_, channels_)};
    KVCACHE_RETURN_IF_ERROR(backend_->ShortConv(x, taps, replay.conv, {}));
  }
  if (replay.recurrent.segments.empty()) return Status::Ok();
  return backend_->StateScan(ScanPart(replay.inputs, {k_dim_, v_dim_, groups_, heads_}), scan_,
                             replay.recurrent, {});
}

}  // namespace kvcache
