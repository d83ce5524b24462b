#include "backend/cpu/linear/kept_panels.h"

#include <atomic>
#include <utility>

#include "backend/cpu/linear/pack_weight.h"

namespace kvcache::cpu {

KeptPanels::KeptPanels(const TensorView& w, std::shared_ptr<PanelStore> store,
                       const std::byte* panels)
    : w_(w), store_(std::move(store)), is_checked_(static_cast<std::size_t>(w.dims[2])) {
  const std::size_t bytes = PanelBytesOf(w_) / is_checked_.size();
  for (std::size_t i = 0; i < is_checked_.size(); ++i) data_.push_back(panels + i * bytes);
}

Status KeptPanels::Check(ThreadPool& pool, std::int64_t matrix) {
  const auto index = static_cast<std::size_t>(matrix);
  const std::size_t bytes = PanelBytesOf(w_) / is_checked_.size();
  const PanelStore::Pieces pieces = store_->PiecesOf(data_[index], bytes);
  std::atomic<bool> is_sound{true};
  pool.ParallelFor(pieces.end - pieces.begin, [&](std::int64_t i, int) {
    if (!store_->CheckPiece(pieces.begin + i)) is_sound.store(false);
  });
  if (!is_sound.load()) {
    const std::int64_t rows = matrix * w_.dims[1];
    const TensorView one = TensorView::Dense(w_.data + rows * BytesOf(w_.dtype, w_.dims[0]),
                                             w_.dtype, w_.dims[0], w_.dims[1]);
    auto again = PackWeight(pool, memory_, one);
    if (!again.ok()) {
      return std::move(again).TakeStatus().WithContext(
          "packed weights are damaged, and were not packed again");
    }
    packed_.push_back(std::move(*again));
    data_[index] = packed_.back().data();
  }
  is_checked_[index] = true;
  return Status::Ok();
}

}  // namespace kvcache::cpu
