#include "cache/causal/causal_snapshot_pool.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {
namespace {

constexpr const char* kNoMemoryForList = "no memory for the list of snapshots";

// Appends a move, joined with the last one if it continues it.
void AddMove(std::vector<CellMove>& moves, const CellMove& move) {
  if (!moves.empty()) {
    CellMove& last = moves.back();
    if (last.from + last.length == move.from && last.to + last.length == move.to) {
      last.length += move.length;
      return;
    }
  }
  moves.push_back(move);
}

// Zeroes what a copy of the positions leaves unwritten: the first and the last tile of each head if
// the range fills only a part of them, and the gap behind K and V.
void ZeroEdges(std::span<const LayerKv> layers, const PositionRange& range,
               std::span<std::byte> bytes) {
  const auto zero = [&](std::byte* begin, std::int64_t size) {
    std::fill_n(begin, size, std::byte{0});
  };
  const auto zero_part = [&](std::byte* part, std::int64_t size, const LayerKv& layer) {
    const std::int64_t tiles = layer.cells / kCellTile;
    const std::int64_t tile = size / layer.shape.kv_heads / tiles;
    for (std::int64_t head = 0; head < layer.shape.kv_heads; ++head) {
      std::byte* const first = part + head * tiles * tile;
      if (range.begin % kCellTile != 0) zero(first, tile);
      if (range.end % kCellTile != 0) zero(first + (tiles - 1) * tile, tile);
    }
    const std::int64_t end = part + size - bytes.data();
    zero(part + size, RoundUp(end, kSnapshotAlignment) - end);
  };
  for (const LayerKv& layer : layers) {
    if (layer.k == nullptr) continue;
    zero_part(layer.k, layer.KBytes(), layer);
    if (!layer.shape.v_in_k) zero_part(layer.v, layer.VBytes(), layer);
  }
}

}  // namespace

CausalSnapshot::~CausalSnapshot() {
  pool_->Clear(*this);
}

std::int64_t CausalSnapshot::HeldBytes() const {
  std::int64_t bytes = 0;
  const KvPage* last = nullptr;
  for (const Piece& piece : pieces_) {
    if (piece.page.get() != last) bytes += piece.page->bytes();
    last = piece.page.get();
  }
  return bytes;
}

std::int64_t CausalSnapshot::HeldCells() const {
  std::int64_t cells = 0;
  for (const HistoryRun& run : hold_.runs.runs()) cells += run.length;
  return cells;
}

Position CausalSnapshot::first() const {
  Position first = end();
  if (!pieces_.empty()) first = std::min(first, pieces_.front().begin);
  if (!hold_.runs.empty()) first = std::min(first, hold_.runs.runs().front().position);
  return first;
}

void SnapshotPool::Detach() {
  while (cells_ != nullptr && !cells_->holds().empty()) {
    CellHold& hold = *cells_->holds().oldest();
    hold.runs.Clear();
    cells_->holds().Remove(hold);
  }
  while (!lazy_.empty()) lazy_.Remove(*lazy_.oldest());
  cells_ = nullptr;
  storage_ = nullptr;
  host_->Detach();
}

void SnapshotPool::List(CausalSnapshot& snapshot) {
  if (!snapshot.listed) lazy_.Add(snapshot);
}

void SnapshotPool::Unlist(CausalSnapshot& snapshot) {
  if (snapshot.listed) lazy_.Remove(snapshot);
}

Result<SnapshotPool::OwnPtr> SnapshotPool::Make(Position begin, Position end, std::size_t runs) {
  constexpr const char* kNoMemory = "no memory for a snapshot";
  return Guarded(kNoMemory, [&]() -> Result<OwnPtr> {
    auto snapshot = std::make_unique<CausalSnapshot>(shared_from_this(), begin, end);
    if (snapshot->hold_.runs.Reserve(runs)) return snapshot;
    return OutOfMemory(kNoMemory);
  });
}

void SnapshotPool::Hold(CausalSnapshot& snapshot, SequenceId id, Position begin, Position end) {
  if (!snapshot.hold_.listed) cells_->Hold(snapshot.hold_);
  List(snapshot);
  const std::span<const HistoryRun> runs = cells_->history(id).runs();
  for (std::size_t i = cells_->history(id).FirstEndingAfter(begin); i < runs.size(); ++i) {
    const HistoryRun part = Clip(runs[i], begin, end);
    if (part.length == 0) break;
    cells_->HoldRun(snapshot.hold_, part);
  }
}

void SnapshotPool::Clear(CausalSnapshot& snapshot) {
  Unlist(snapshot);
  if (cells_ != nullptr) cells_->Unhold(snapshot.hold_);
  snapshot.pieces_.clear();
}

Result<std::vector<CellHold*>> SnapshotPool::HoldsExcept(const CausalSnapshot* keep) const {
  std::vector<CellHold*> holds;
  KVCACHE_RETURN_IF_ERROR(Guarded(kNoMemoryForList, [&] {
    for (CausalSnapshot* s = lazy_.oldest(); s != nullptr; s = s->newer) {
      if (s != keep) holds.push_back(&s->hold_);
    }
  }));
  return holds;
}

Result<std::int32_t> SnapshotPool::CountAvailable(std::int64_t needed,
                                                  std::span<const Eviction> evictions) const {
  std::int32_t available = cells_->cells_without_drafts();
  if (available < needed) available += cells_->CountFreed(evictions);
  if (available >= needed || lazy_.empty()) return available;
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<CellHold*> holds, HoldsExcept(nullptr));
  return cells_->CountAvailable(evictions, holds);
}

Result<std::int32_t> SnapshotPool::CountAvailable(const CausalSnapshot* keep, SequenceId id,
                                                  Position begin) const {
  KVCACHE_ASSIGN_OR_RETURN(std::vector<CellHold*> holds, HoldsExcept(keep));
  CellHold dropped;
  KVCACHE_RETURN_IF_ERROR(Guarded(kNoMemoryForList, [&] { holds.push_back(&dropped); }));
  const std::span<const HistoryRun> runs = cells_->history(id).runs();
  if (!dropped.runs.Reserve(runs.size())) return OutOfMemory(kNoMemoryForList);
  for (const HistoryRun& run : runs) {
    const HistoryRun part = Clip(run, begin, kEndOfSequence);
    if (part.length > 0) dropped.runs.Append(part);
  }
  return cells_->CountAvailable({}, holds);
}

Status SnapshotPool::CheckRemoveMiddle(SequenceId id, Position end) const {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<CellHold*> holds, HoldsExcept(nullptr));
  return cells_->CheckRemoveMiddle(id, end, holds);
}

Status SnapshotPool::EnsureCapacityForRemoval(SequenceId id, Position end) {
  while (!lazy_.empty() && !cells_->CheckRemoveMiddle(id, end, {}).ok()) {
    KVCACHE_RETURN_IF_ERROR(Materialize(*lazy_.oldest()));
  }
  return Status::Ok();
}

Status SnapshotPool::EnsureCapacity(std::int32_t needed, std::span<const Eviction> evictions,
                                    const CausalSnapshot* keep, std::int32_t& available) {
  available = cells_->cells_without_drafts() + cells_->CountFreed(evictions);
  if (available >= needed || lazy_.empty()) {
    return available >= needed ? Status::Ok() : CacheFull("");
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<CellHold*> holds, HoldsExcept(keep));
  const std::int32_t max = cells_->CountAvailable(evictions, holds);
  if (max < needed) {
    available = max;
    return CacheFull("");
  }
  cells_->FindFreeing(evictions, holds);
  for (CausalSnapshot* s = lazy_.oldest(); s != nullptr && available < needed;) {
    CausalSnapshot* const newer = s->newer;
    if (s != keep && s->hold_.frees) {
      KVCACHE_RETURN_IF_ERROR(Materialize(*s));
      available = cells_->cells_without_drafts() + cells_->CountFreed(evictions);
    }
    s = newer;
  }
  return Status::Ok();
}

// Copies the held positions [begin, end) to host layers whose first cell is position `first`.
Status SnapshotPool::CopyCellsOut(const CellHold& hold, std::span<const LayerKv> layers,
                                  Position first, Position begin, Position end) const {
  std::vector<CellMove> moves;
  for (const HistoryRun& run : hold.runs.runs()) {
    const HistoryRun part = Clip(run, begin, end);
    if (part.length > 0) AddMove(moves, {part.cell, part.position - first, part.length});
  }
  for (std::size_t i = 0; i < layers.size() && !moves.empty(); ++i) {
    const LayerKv* const layer = storage_->layers().Find(static_cast<int>(i));
    if (layer == nullptr || layers[i].k == nullptr) continue;
    KVCACHE_RETURN_IF_ERROR(storage_->backend().TransferCells(*layer, layers[i], moves));
  }
  return Status::Ok();
}

// Makes a page for each stretch of held positions, and new ones at multiples of kMaxCells.
Status SnapshotPool::Materialize(CausalSnapshot& snapshot) {
  Status status = Guarded("no memory for the pages of a snapshot", [&]() -> Status {
    std::vector<CausalSnapshot::Piece> made;
    const std::vector<LayerKv> layers = storage_->layers().All();
    const std::span<const HistoryRun> runs = snapshot.hold_.runs.runs();
    for (std::size_t i = 0; i < runs.size();) {
      Position begin = runs[i].position;
      Position end = RunList::End(runs[i]);
      for (++i; i < runs.size() && runs[i].position == end; ++i) end = RunList::End(runs[i]);
      while (begin < end) {
        const Position next = std::min(end, (begin / KvPage::kMaxCells + 1) * KvPage::kMaxCells);
        KVCACHE_ASSIGN_OR_RETURN(auto page, KvPage::Make(layers, begin, next, host_));
        KVCACHE_RETURN_IF_ERROR(
            CopyCellsOut(snapshot.hold_, page->layers(), page->first(), begin, next));
        made.push_back({begin, next, std::move(page)});
        begin = next;
      }
    }
    made.insert(made.end(), snapshot.pieces_.begin(), snapshot.pieces_.end());
    std::sort(made.begin(), made.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    snapshot.pieces_ = std::move(made);
    return Status::Ok();
  });
  if (!status.ok()) return status;
  Unlist(snapshot);
  cells_->Unhold(snapshot.hold_);
  return Status::Ok();
}

std::int32_t SnapshotPool::CountOwned(const CausalSnapshot& snapshot, Position target) {
  std::int32_t count = 0;
  for (const CausalSnapshot::Piece& piece : snapshot.pieces_) {
    count += std::max(0, std::min(piece.end, target) - piece.begin);
  }
  return count;
}

Status SnapshotPool::CopyIn(const CausalSnapshot::Piece& piece, Position target,
                            const CellHold& staged) {
  const KvPage& page = *piece.page;
  std::vector<CellMove> moves;
  for (const HistoryRun& run : staged.runs.runs()) {
    const HistoryRun part = Clip(run, piece.begin, std::min(piece.end, target));
    if (part.length > 0) AddMove(moves, {part.position - page.first(), part.cell, part.length});
  }
  for (std::size_t i = 0; i < page.layers().size(); ++i) {
    if (page.layers()[i].k == nullptr) continue;
    KVCACHE_ASSIGN_OR_RETURN(const LayerKv layer,
                             storage_->EnsureLayer(static_cast<int>(i), page.layers()[i].shape));
    KVCACHE_RETURN_IF_ERROR(storage_->backend().TransferCells(page.layers()[i], layer, moves));
  }
  return Status::Ok();
}

Status SnapshotPool::CheckShapes(const CausalSnapshot& snapshot) const {
  for (const CausalSnapshot::Piece& piece : snapshot.pieces_) {
    const std::span<const LayerKv> layers = piece.page->layers();
    const std::span<const LayerKv> first = snapshot.pieces_.front().page->layers();
    KVCACHE_RETURN_IF_ERROR(CheckLayers(layers, *storage_));
    for (std::size_t i = 0; i < std::min(layers.size(), first.size()); ++i) {
      if (layers[i].k == nullptr || first[i].k == nullptr) continue;
      if (layers[i].shape == first[i].shape) continue;
      return Invalid(StrCat("layer ", i, " has two shapes in a snapshot that was merged"));
    }
  }
  return Status::Ok();
}

Status SnapshotPool::Stage(const CausalSnapshot& snapshot, SequenceId id, Position target,
                           CellHold& staged) {
  const std::size_t max =
      snapshot.hold_.runs.runs().size() + static_cast<std::size_t>(CountOwned(snapshot, target));
  if (!staged.runs.Reserve(max))
    return OutOfMemory("no memory for the runs of a restored sequence");
  cells_->Hold(staged);
  const std::span<const HistoryRun> held = snapshot.hold_.runs.runs();
  std::size_t next = 0;  // of `held`
  const auto share_below = [&](Position position) {
    for (; next < held.size() && held[next].position < position; ++next) {
      const HistoryRun part = Clip(held[next], 0, target);
      if (part.length > 0) cells_->HoldRun(staged, part);
    }
  };
  for (const CausalSnapshot::Piece& piece : snapshot.pieces_) {
    share_below(piece.begin);
    for (Position p = piece.begin; p < std::min(piece.end, target); ++p) {
      cells_->HoldClaim(staged, id, p);
    }
  }
  share_below(kEndOfSequence);
  Status status = Guarded("no memory for the copies of a restored sequence", [&]() -> Status {
    for (const CausalSnapshot::Piece& piece : snapshot.pieces_) {
      if (piece.begin < target) KVCACHE_RETURN_IF_ERROR(CopyIn(piece, target, staged));
    }
    return Status::Ok();
  });
  if (!status.ok()) cells_->Unhold(staged);
  return status;
}

// The bytes are one page over all positions, in the layers that any page or the cache has.
Status SnapshotPool::Describe(const CausalSnapshot& snapshot, SnapshotHeader& header) const {
  header.layers = storage_->layers().All();
  for (const CausalSnapshot::Piece& piece : snapshot.pieces_) {
    header.layers.resize(std::max(header.layers.size(), piece.page->layers().size()));
    for (std::size_t i = 0; i < piece.page->layers().size(); ++i) {
      const LayerKv& layer = piece.page->layers()[i];
      if (layer.k != nullptr) header.layers[i] = layer;
    }
    header.ranges.push_back({piece.begin, piece.end});
  }
  for (const HistoryRun& run : snapshot.hold_.runs.runs()) {
    header.ranges.push_back({run.position, RunList::End(run)});
  }
  std::vector<PositionRange>& ranges = header.ranges;
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin == ranges[kept].end) {
      ranges[kept].end = ranges[i].end;
    } else {
      ranges[++kept] = ranges[i];
    }
  }
  if (!ranges.empty()) ranges.resize(kept + 1);
  header.payload = LayOutOnHost(header.layers, CellsOf(header), nullptr);
  return Status::Ok();
}

std::int64_t SnapshotPool::CellsOf(const SnapshotHeader& header) {
  if (header.ranges.empty()) return 0;
  return RoundUp(header.ranges.back().end, kCellTile) - FirstOf(header);
}

Position SnapshotPool::FirstOf(const SnapshotHeader& header) {
  return header.ranges.empty() ? 0 : header.ranges.front().begin / kCellTile * kCellTile;
}

// A page from before a layer's first Put lacks that layer.
bool SnapshotPool::HasAllLayers(const CausalSnapshot& snapshot,
                                std::span<const LayerKv> layers) const {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].k == nullptr) continue;
    const bool in_cells = storage_->layers().Find(static_cast<int>(i)) != nullptr;
    if (!in_cells && !snapshot.hold_.runs.empty()) return false;
    for (const CausalSnapshot::Piece& piece : snapshot.pieces_) {
      const std::span<const LayerKv> page = piece.page->layers();
      if (i >= page.size() || page[i].k == nullptr) return false;
    }
  }
  return true;
}

Status SnapshotPool::CopyOut(const CausalSnapshot& snapshot, const SnapshotHeader& header,
                             std::span<std::byte> bytes) const {
  std::vector<LayerKv> layers = header.layers;
  LayOutOnHost(layers, CellsOf(header), bytes.data());
  if (header.ranges.size() == 1 && HasAllLayers(snapshot, layers)) {
    ZeroEdges(layers, header.ranges.front(), bytes);
  } else {
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
  }
  const Position first = FirstOf(header);
  KVCACHE_RETURN_IF_ERROR(CopyCellsOut(snapshot.hold_, layers, first, 0, kEndOfSequence));
  for (const CausalSnapshot::Piece& piece : snapshot.pieces_) {
    const CellMove move{piece.begin - piece.page->first(), piece.begin - first,
                        piece.end - piece.begin};
    KVCACHE_RETURN_IF_ERROR(
        TransferLayers(storage_->backend(), piece.page->layers(), layers, move));
  }
  return Status::Ok();
}

Status SnapshotPool::CopyIn(CausalSnapshot& snapshot, const SnapshotHeader& header,
                            std::span<const std::byte> bytes) const {
  std::vector<LayerKv> layers = header.layers;
  // The backend only reads them.
  LayOutOnHost(layers, CellsOf(header), const_cast<std::byte*>(bytes.data()));
  const Position first = FirstOf(header);
  for (auto [begin, end] : header.ranges) {
    while (begin < end) {
      const Position next = std::min(end, (begin / KvPage::kMaxCells + 1) * KvPage::kMaxCells);
      KVCACHE_ASSIGN_OR_RETURN(auto page, KvPage::Make(layers, begin, next, host_));
      const CellMove move{begin - first, begin - page->first(), next - begin};
      KVCACHE_RETURN_IF_ERROR(TransferLayers(storage_->backend(), layers, page->layers(), move));
      snapshot.pieces_.push_back({begin, next, std::move(page)});
      begin = next;
    }
  }
  return Status::Ok();
}

Status SnapshotPool::PrepareJoin(CausalSnapshot& parent, const CausalSnapshot& child) {
  constexpr const char* kNoMemory = "no memory for a merged snapshot";
  KVCACHE_RETURN_IF_ERROR(Guarded(
      kNoMemory, [&] { parent.pieces_.reserve(parent.pieces_.size() + child.pieces_.size()); }));
  if (parent.hold_.runs.Reserve(child.hold_.runs.runs().size())) return Status::Ok();
  return OutOfMemory(kNoMemory);
}

void SnapshotPool::Join(CausalSnapshot& parent, CausalSnapshot& child) {
  parent.pieces_.insert(parent.pieces_.end(), child.pieces_.begin(), child.pieces_.end());
  if (!child.hold_.runs.empty()) {
    if (!parent.hold_.listed) cells_->Hold(parent.hold_);
    cells_->MoveHold(child.hold_, parent.hold_);
    List(parent);
  }
  parent.SetRange(parent.begin(), child.end());
  Clear(child);
}

Result<SnapshotPool::OwnPtr> SnapshotPool::Cut(CausalSnapshot& snapshot, Position position) {
  KVCACHE_ASSIGN_OR_RETURN(OwnPtr later,
                           Make(position, snapshot.end(), snapshot.hold_.runs.runs().size()));
  const auto first = std::find_if(snapshot.pieces_.begin(), snapshot.pieces_.end(),
                                  [&](const auto& piece) { return piece.end > position; });
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for the parts of a snapshot",
                                  [&] { later->pieces_.assign(first, snapshot.pieces_.end()); }));
  snapshot.pieces_.erase(first, snapshot.pieces_.end());
  if (!later->pieces_.empty() && later->pieces_.front().begin < position) {
    // The piece is in both. There is room for it: it was just erased.
    snapshot.pieces_.push_back(later->pieces_.front());
    snapshot.pieces_.back().end = position;
    later->pieces_.front().begin = position;
  }
  cells_->CutHold(snapshot.hold_, position, later->hold_);
  if (later->hold_.listed) List(*later);
  if (!snapshot.hold_.listed) Unlist(snapshot);
  snapshot.SetRange(snapshot.begin(), position);
  return later;
}

}  // namespace kvcache
