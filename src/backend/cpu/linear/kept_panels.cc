#include "backend/cpu/linear/kept_panels.h"

#include <atomic>
#include <utility>

#include "backend/cpu/linear/pack_weight.h"

namespace kvcache::cpu {

KeptPanels::KeptPanels(const TensorView& w, std::shared_ptr<PanelStore> store,
                       const std::byte* panels)
    : w_(w),
      store_(std::move(store)),
      data_(panels),
      is_checked_(static_cast<std::size_t>(w.dims[2])) {}

Status KeptPanels::Check(ThreadPool& pool, std::int64_t matrix) {
  const std::size_t bytes = PanelBytesOf(w_) / is_checked_.size();
  const PanelStore::Pieces pieces =
      store_->PiecesOf(data_ + matrix * static_cast<std::int64_t>(bytes), bytes);
  std::atomic<bool> is_sound{true};
  pool.ParallelFor(pieces.end - pieces.begin, [&](std::int64_t i, int) {
    if (!store_->CheckPiece(pieces.begin + i)) is_sound.store(false);
  });
  if (is_sound.load()) {
    is_checked_[static_cast<std::size_t>(matrix)] = true;
    return Status::Ok();
  }
  WeightMemory memory;
  KVCACHE_ASSIGN_OR_RETURN(WeightPiece again, PackWeight(pool, memory, w_));
  packed_ = std::move(again);
  data_ = packed_->data();
  is_checked_.assign(is_checked_.size(), true);
  return Status::Ok();
}

}  // namespace kvcache::cpu
