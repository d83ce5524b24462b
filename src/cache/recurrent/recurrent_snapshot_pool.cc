#include "cache/recurrent/recurrent_snapshot_pool.h"

#include <algorithm>

#include "base/errors.h"

namespace kvcache {
namespace {

constexpr const char* kNoSnapshot = "no memory for a snapshot";

}  // namespace

Result<std::shared_ptr<StatePage>> StatePage::Make(std::int64_t bytes,
                                                   std::shared_ptr<HostBytes> count) {
  return Guarded(kNoSnapshot, [&]() -> Result<std::shared_ptr<StatePage>> {
    std::shared_ptr<StatePage> page(new StatePage());
    auto memory = count->memory.Take(static_cast<std::size_t>(bytes));
    if (!memory.ok()) return memory.status();
    page->memory_ = std::move(*memory);
    page->count_ = std::move(count);
    page->count_->Add(bytes);
    return page;
  });
}

StatePage::~StatePage() {
  if (count_ == nullptr) return;
  count_->Add(-static_cast<std::int64_t>(memory_.size_bytes()));
  count_->memory.Give(std::move(memory_));
}

RecurrentSnapshot::~RecurrentSnapshot() {
  if (!listed) return;
  pool_->Unlist(*this);
  pool_->states_->Drop(state_.cell);
}

std::int64_t RecurrentSnapshot::HeldBytes() const {
  return (attention == nullptr ? 0 : attention->HeldBytes()) +
         (page_ == nullptr ? 0 : static_cast<std::int64_t>(page_->bytes().size()));
}

std::int64_t RecurrentSnapshot::HeldCells() const {
  return (attention == nullptr ? 0 : attention->HeldCells()) + (listed ? 1 : 0);
}

void RecurrentSnapshotPool::Detach() {
  while (!lazy_.empty()) Unlist(*lazy_.oldest());
  states_ = nullptr;
  host_->Detach();
}

void RecurrentSnapshotPool::List(RecurrentSnapshot& snapshot) {
  ++held_[snapshot.state_.cell];
  lazy_.Add(snapshot);
}

void RecurrentSnapshotPool::Unlist(RecurrentSnapshot& snapshot) {
  --held_[snapshot.state_.cell];
  lazy_.Remove(snapshot);
}

std::int64_t RecurrentSnapshotPool::StateBytes() const {
  return layers_ * BytesOf(DType::kF32, stores_[0]->values() + stores_[1]->values());
}

Result<RecurrentSnapshotPool::OwnPtr> RecurrentSnapshotPool::Make(Position begin, Position end) {
  return Guarded(kNoSnapshot, [&]() -> Result<OwnPtr> {
    return std::make_unique<RecurrentSnapshot>(shared_from_this(), begin, end);
  });
}

// The zeros are in a cell that is never free, so nothing is gained by letting go of it.
void RecurrentSnapshotPool::Hold(RecurrentSnapshot& snapshot, const StatePoint& state) {
  snapshot.state_ = state;
  if (state.cell == StateStore::kZeros) return;
  states_->Keep(state.cell);
  List(snapshot);
}

void RecurrentSnapshotPool::SetPage(RecurrentSnapshot& snapshot,
                                    std::shared_ptr<const StatePage> page) {
  snapshot.page_ = std::move(page);
  Unlist(snapshot);
  states_->Drop(std::exchange(snapshot.state_.cell, StatePoint::kNone));
}

void RecurrentSnapshotPool::MoveToPage(std::int32_t cell,
                                       const std::shared_ptr<const StatePage>& page) {
  for (RecurrentSnapshot* s = lazy_.oldest(); s != nullptr;) {
    RecurrentSnapshot* const newer = s->newer;
    if (s->state_.cell == cell) SetPage(*s, page);
    s = newer;
  }
}

template <typename Copy>
Status RecurrentSnapshotPool::ForEachPart(std::int32_t cell, const Copy& copy) const {
  std::size_t begin = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    for (StateStore* const store : stores_) {
      const auto size = static_cast<std::size_t>(BytesOf(DType::kF32, store->values()));
      if (size == 0) continue;
      KVCACHE_RETURN_IF_ERROR(store->Ensure(layer, std::span(&cell, 1)));
      KVCACHE_RETURN_IF_ERROR(copy(
          TensorView::Dense(store->At(layer, cell), DType::kF32, store->values()), begin, size));
      begin += size;
    }
  }
  return Status::Ok();
}

Status RecurrentSnapshotPool::CopyCell(std::int32_t cell, std::span<std::byte> bytes) const {
  return ForEachPart(cell, [&](const TensorView& part, std::size_t begin, std::size_t size) {
    return backend_->CopyToHost(part, bytes.subspan(begin, size));
  });
}

Status RecurrentSnapshotPool::FillCell(std::int32_t cell, std::span<const std::byte> bytes) {
  return ForEachPart(cell, [&](const TensorView& part, std::size_t begin, std::size_t size) {
    return backend_->CopyFromHost(bytes.subspan(begin, size), part);
  });
}

Result<std::shared_ptr<StatePage>> RecurrentSnapshotPool::PageOf(std::int32_t cell) const {
  KVCACHE_ASSIGN_OR_RETURN(auto page, StatePage::Make(StateBytes(), host_));
  KVCACHE_RETURN_IF_ERROR(CopyCell(cell, page->bytes()));
  return page;
}

Status RecurrentSnapshotPool::Materialize(RecurrentSnapshot& snapshot) {
  if (!snapshot.listed) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(auto page, PageOf(snapshot.state_.cell));
  SetPage(snapshot, std::move(page));
  return Status::Ok();
}

bool RecurrentSnapshotPool::Frees(std::int32_t cell, std::span<const std::int32_t> dropped) const {
  const auto also = static_cast<std::int32_t>(std::count(dropped.begin(), dropped.end(), cell));
  return held_[cell] > 0 && states_->cells().ref_count(cell) == held_[cell] + also;
}

std::int32_t RecurrentSnapshotPool::CountFree(std::span<const std::int32_t> dropped,
                                              bool materialised) const {
  std::int32_t free = states_->free_cells();
  for (std::size_t i = 0; i < dropped.size(); ++i) {
    const std::int32_t cell = dropped[i];
    const std::span<const std::int32_t> earlier = dropped.first(i);
    if (std::find(earlier.begin(), earlier.end(), cell) != earlier.end()) continue;
    const auto references = std::count(dropped.begin(), dropped.end(), cell);
    if (states_->cells().ref_count(cell) == references) ++free;
  }
  for (std::int32_t cell = 0; cell < states_->cells().size() && materialised; ++cell) {
    if (Frees(cell, dropped)) ++free;
  }
  return free;
}

// Snapshots that share a cell share its page.
Status RecurrentSnapshotPool::EnsureCapacity(std::int32_t needed,
                                             std::span<const std::int32_t> dropped) {
  std::int32_t free = CountFree(dropped, false);
  if (free >= needed) return Status::Ok();
  if (CountFree(dropped, true) < needed) {
    return CacheFull("there are too few cells for recurrent states");
  }
  for (RecurrentSnapshot* s = lazy_.oldest(); s != nullptr && free < needed;) {
    const std::int32_t cell = s->state_.cell;
    if (!Frees(cell, dropped)) {
      s = s->newer;
      continue;
    }
    KVCACHE_ASSIGN_OR_RETURN(auto page, PageOf(cell));
    MoveToPage(cell, page);
    ++free;
    s = lazy_.oldest();
  }
  return Status::Ok();
}

Result<std::int32_t> RecurrentSnapshotPool::Stage(const RecurrentSnapshot& snapshot) {
  if (snapshot.state_.known()) {
    states_->Keep(snapshot.state_.cell);
    return snapshot.state_.cell;
  }
  KVCACHE_RETURN_IF_ERROR(EnsureCapacity(1, {}));
  const std::int32_t cell = states_->Take(StateStore::kZeros);
  Status status = FillCell(cell, snapshot.page_->bytes());
  if (status.ok()) return cell;
  states_->Drop(cell);
  return status;
}

Status RecurrentSnapshotPool::CopyOut(const RecurrentSnapshot& snapshot,
                                      std::span<std::byte> bytes) const {
  if (snapshot.page_ != nullptr) {
    const std::span<const std::byte> page = snapshot.page_->bytes();
    std::copy(page.begin(), page.end(), bytes.begin());
    return Status::Ok();
  }
  if (snapshot.state_.cell != StateStore::kZeros) return CopyCell(snapshot.state_.cell, bytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  return Status::Ok();
}

Status RecurrentSnapshotPool::CopyIn(RecurrentSnapshot& snapshot, std::span<const std::byte> bytes,
                                     Position tokens) {
  KVCACHE_ASSIGN_OR_RETURN(auto page, StatePage::Make(StateBytes(), host_));
  std::copy(bytes.begin(), bytes.end(), page->bytes().begin());
  snapshot.page_ = std::move(page);
  snapshot.state_ = {StatePoint::kNone, tokens};
  return Status::Ok();
}

}  // namespace kvcache
