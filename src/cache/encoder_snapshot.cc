#include "cache/encoder_snapshot.h"

#include <algorithm>
#include <new>
#include <utility>

namespace kvcache {

EncoderSnapshot::~EncoderSnapshot() {
  if (pool_->entries_ == nullptr || output_.entry == EncoderOutput::kNone) return;
  pool_->entries_->Release(output_.entry);
  std::erase(pool_->lazy_, this);
}

void EncoderSnapshotPool::Detach() {
  entries_ = nullptr;
  storage_ = nullptr;
  lazy_.clear();
  host_->hook = nullptr;
}

Result<std::unique_ptr<EncoderSnapshot>> EncoderSnapshotPool::Share(const EncoderOutput& output,
                                                                    Position begin, Position end) {
  try {
    auto snapshot = std::make_unique<EncoderSnapshot>(shared_from_this(), begin, end);
    if (output.entry == EncoderOutput::kNone) return snapshot;
    lazy_.push_back(snapshot.get());
    snapshot->output_ = output;
    entries_->Share(output.entry);
    return snapshot;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for a snapshot");
  }
}

Status EncoderSnapshotPool::Materialize(EncoderSnapshot& snapshot) {
  if (snapshot.output_.entry == EncoderOutput::kNone) return Status::Ok();
  const std::int32_t tokens = snapshot.output_.tokens;
  try {
    std::vector<LayerKv> layers(storage_->layers().size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const LayerKv* const layer = storage_->layers().Find(static_cast<int>(i));
      if (layer != nullptr) layers[i] = *layer;
    }
    KVCACHE_ASSIGN_OR_RETURN(auto page, KvPage::Make(layers, 0, tokens, host_));
    const CellMove move{snapshot.output_.entry * stride_, 0, tokens};
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (page->layers()[i].k == nullptr) continue;
      KVCACHE_RETURN_IF_ERROR(
          storage_->backend().TransferCells(layers[i], page->layers()[i], std::span(&move, 1)));
    }
    snapshot.page_ = std::move(page);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the pages of a snapshot"};
  }
  entries_->Release(snapshot.output_.entry);
  snapshot.output_.entry = EncoderOutput::kNone;
  std::erase(lazy_, &snapshot);
  return Status::Ok();
}

void EncoderSnapshotPool::Swap(EncoderSnapshot& a, EncoderSnapshot& b) {
  std::swap(a.output_, b.output_);
  std::swap(a.page_, b.page_);
  for (EncoderSnapshot*& lazy : lazy_) lazy = lazy == &a ? &b : lazy == &b ? &a : lazy;
}

Status EncoderSnapshotPool::MakeRoom(std::int32_t own, const EncoderSnapshot* keep) {
  for (std::size_t i = 0; i < lazy_.size();) {
    if (entries_->free_cells() > 0) break;
    if (own != EncoderOutput::kNone && entries_->ref_count(own) == 1) break;
    if (lazy_[i] == keep) {
      ++i;
    } else {
      KVCACHE_RETURN_IF_ERROR(Materialize(*lazy_[i]));
    }
  }
  return Status::Ok();
}

Status EncoderSnapshotPool::CopyIn(const EncoderSnapshot& snapshot, std::int32_t entry) {
  const CellMove move{0, entry * stride_, snapshot.output_.tokens};
  for (std::size_t i = 0; i < snapshot.page_->layers().size(); ++i) {
    const LayerKv& source = snapshot.page_->layers()[i];
    if (source.k == nullptr) continue;
    KVCACHE_ASSIGN_OR_RETURN(const LayerKv layer,
                             storage_->EnsureLayer(static_cast<int>(i), source.shape));
    KVCACHE_RETURN_IF_ERROR(storage_->backend().TransferCells(source, layer, std::span(&move, 1)));
  }
  return Status::Ok();
}

}  // namespace kvcache
