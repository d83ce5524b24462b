#include "cache/encoder/encoder_snapshot_pool.h"

#include <utility>

#include "base/errors.h"
#include "cache/cache_checks.h"

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
  host_->Detach();
}

Result<std::unique_ptr<EncoderSnapshot>> EncoderSnapshotPool::Share(const EncoderOutput& output,
                                                                    Position begin, Position end) {
  return Guarded("no memory for a snapshot", [&]() -> Result<std::unique_ptr<EncoderSnapshot>> {
    auto snapshot = std::make_unique<EncoderSnapshot>(shared_from_this(), begin, end);
    if (output.entry == EncoderOutput::kNone) return snapshot;
    lazy_.push_back(snapshot.get());
    snapshot->output_ = output;
    entries_->Share(output.entry);
    return snapshot;
  });
}

Status EncoderSnapshotPool::Materialize(EncoderSnapshot& snapshot) {
  if (snapshot.output_.entry == EncoderOutput::kNone) return Status::Ok();
  const std::int32_t tokens = snapshot.output_.tokens;
  Status status = Guarded("no memory for the pages of a snapshot", [&]() -> Status {
    const std::vector<LayerKv> layers = storage_->layers().All();
    KVCACHE_ASSIGN_OR_RETURN(auto page, KvPage::Make(layers, 0, tokens, host_));
    KVCACHE_RETURN_IF_ERROR(TransferLayers(storage_->backend(), layers, page->layers(),
                                           {snapshot.output_.entry * stride_, 0, tokens}));
    snapshot.page_ = std::move(page);
    return Status::Ok();
  });
  if (!status.ok()) return status;
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

Status EncoderSnapshotPool::EnsureCapacity(std::int32_t own, const EncoderSnapshot* keep) {
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

Status EncoderSnapshotPool::Describe(const EncoderSnapshot& snapshot,
                                     SnapshotHeader& header) const {
  const EncoderOutput& output = snapshot.output_;
  header.numbers = {snapshot.HasOutput() ? output.tokens : 0, output.position, output.first_gone};
  if (!snapshot.HasOutput()) return Status::Ok();
  header.layers = storage_->layers().All();
  if (snapshot.page_ != nullptr) {
    header.layers.assign(snapshot.page_->layers().begin(), snapshot.page_->layers().end());
    for (LayerKv& layer : header.layers) {
      if (layer.k == nullptr) layer = {};
    }
  }
  header.payload = LayOutOnHost(header.layers, RoundUp(output.tokens, kCellTile), nullptr);
  return Status::Ok();
}

Status EncoderSnapshotPool::CopyOut(const EncoderSnapshot& snapshot, const SnapshotHeader& header,
                                    std::span<std::byte> bytes) const {
  if (!snapshot.HasOutput()) return Status::Ok();
  const std::int32_t tokens = snapshot.output_.tokens;
  std::vector<LayerKv> layers = header.layers;
  LayOutOnHost(layers, RoundUp(tokens, kCellTile), bytes.data());
  KvBackend& backend = storage_->backend();
  if (snapshot.page_ != nullptr) {
    return TransferLayers(backend, snapshot.page_->layers(), layers, {0, 0, tokens});
  }
  return TransferLayers(backend, storage_->layers().All(), layers,
                        {snapshot.output_.entry * stride_, 0, tokens});
}

Result<std::unique_ptr<EncoderSnapshot>> EncoderSnapshotPool::MakeFrom(
    const SnapshotHeader& header, const EncoderOutput& output, std::span<const std::byte> bytes) {
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, Share({}, header.begin, header.end));
  if (output.tokens == 0) return snapshot;
  std::vector<LayerKv> layers = header.layers;
  // The backend only reads them.
  LayOutOnHost(layers, RoundUp(output.tokens, kCellTile), const_cast<std::byte*>(bytes.data()));
  KVCACHE_ASSIGN_OR_RETURN(auto page, KvPage::Make(layers, 0, output.tokens, host_));
  KVCACHE_RETURN_IF_ERROR(
      TransferLayers(storage_->backend(), layers, page->layers(), {0, 0, output.tokens}));
  snapshot->output_ = output;
  snapshot->page_ = std::move(page);
  return snapshot;
}

Status EncoderSnapshotPool::CheckShapes(const EncoderSnapshot& snapshot) const {
  if (snapshot.page_ == nullptr) return Status::Ok();
  return CheckLayers(snapshot.page_->layers(), *storage_);
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
