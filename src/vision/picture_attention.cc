#include "vision/picture_attention.h"

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::vision {

Status PictureAttention::Reserve(KvBackend& backend, const KvShape& shape, std::int64_t rows) {
  const std::int64_t cells = (rows + kCellTile - 1) / kCellTile * kCellTile;
  if (k_ != nullptr && layer_.shape == shape && layer_.cells == cells) return Status::Ok();
  LayerKv layer{.shape = shape, .layout = backend.preferred_cache_config().layout, .cells = cells};
  k_.reset();
  v_.reset();
  KVCACHE_ASSIGN_OR_RETURN(k_, backend.Allocate(static_cast<std::size_t>(layer.KBytes())));
  auto v = backend.Allocate(static_cast<std::size_t>(layer.VBytes()));
  if (!v.ok()) {
    k_.reset();
    return std::move(v).TakeStatus();
  }
  v_ = std::move(v).value();
  layer.k = k_->data();
  layer.v = v_->data();
  layer_ = layer;
  return Status::Ok();
}

void PictureAttention::Sight::Set(std::span<const std::int32_t> ends) {
  runs.clear();
  histories.clear();
  history_of_row.clear();
  positions.clear();
  runs.reserve(ends.size());
  std::int32_t begin = 0;
  for (const std::int32_t end : ends) {
    const auto history = static_cast<std::int32_t>(histories.size());
    runs.push_back({0, begin, end - begin});
    histories.push_back(std::span<const HistoryRun>(runs).last(1));
    for (Position i = 0; i < end - begin; ++i) {
      history_of_row.push_back(history);
      positions.push_back(i);
    }
    begin = end;
  }
}

Status PictureAttention::SetWindows(std::span<const std::int32_t> ends) {
  return Guarded("no memory for the windows of a picture", [&] {
    all_.Set(ends.last(1));
    windows_.Set(ends);
    bidirectional_.assign(static_cast<std::size_t>(ends.back()), 1);
  });
}

void PictureAttention::Store(Pass& pass, std::int64_t first, const TensorView& k,
                             const TensorView& v) {
  if (!pass.runs()) return;
  const CellRun cells[] = {
      {static_cast<std::int32_t>(first), static_cast<std::int32_t>(pass.batch())}};
  pass.Check(pass.backend().StoreKv(layer_, k, v, cells));
}

void PictureAttention::Attend(Pass& pass, std::int64_t first, const TensorView& q, Reach reach,
                              float scale, const TensorView& out) {
  if (!pass.runs()) return;
  const Sight& sight = reach == Reach::kAll ? all_ : windows_;
  const auto from = static_cast<std::size_t>(first);
  const auto count = static_cast<std::size_t>(pass.batch());
  pass.Check(pass.backend().Attention(
      layer_, q,
      {.positions = std::span(sight.positions).subspan(from, count),
       .history_of_query = std::span(sight.history_of_row).subspan(from, count),
       .histories = sight.histories,
       .bidirectional = std::span(bidirectional_).subspan(from, count)},
      {.scale = scale}, out));
}

}  // namespace kvcache::vision
