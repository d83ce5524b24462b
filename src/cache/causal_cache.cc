#include "kvcache/causal_cache.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "base/strings.h"
#include "cache/causal_cache_impl.h"
#include "cache/layer_views.h"

namespace kvcache {
namespace {

// With strides of whole tiles a token is in the lane of its position.
std::int32_t WholeTiles(std::int32_t cells) {
  return cells < kCellTile ? cells : cells / kCellTile * kCellTile;
}

// Returns the number of cells before padding. retained_tokens 0: nothing is evicted.
std::int64_t CellsFor(const CacheOptions& options, std::int32_t retained_tokens) {
  const std::int64_t sequences = options.max_sequences;
  return retained_tokens == 0 ? sequences * options.capacity
                              : sequences * retained_tokens + options.max_batch;
}

// A ring needs as many cells as tokens are retained: the oldest one is evicted before the next one
// is claimed. It is rounded down to whole tiles if that leaves enough.
CellTableOptions TableFor(const CacheOptions& options, std::int32_t retained_tokens,
                          std::int64_t cells) {
  CellTableOptions table{.cells = static_cast<std::int32_t>(cells),
                         .sequences = options.max_sequences,
                         .drafts = options.max_batch,
                         .sequence_stride = WholeTiles(options.capacity)};
  if (retained_tokens == 0) return table;
  const std::int32_t share = table.cells / options.max_sequences;
  table.placement = Placement::kRing;
  table.sequence_stride = WholeTiles(share) >= retained_tokens ? WholeTiles(share) : share;
  return table;
}

std::string SizesText(const CacheOptions& options, std::int32_t retained_tokens) {
  if (retained_tokens == 0) return SizesText(options);
  return StrCat("max_sequences ", options.max_sequences, " x retained_tokens ", retained_tokens,
                " + max_batch ", options.max_batch);
}

}  // namespace

Status CausalCache::CheckInit(const KvBackend& backend, const CacheOptions& options) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckInit(backend, options));
  KVCACHE_ASSIGN_OR_RETURN(const std::int32_t retained_tokens,
                           WindowEviction::RetainedTokens(causal_, options));
  if (CellsFor(options, retained_tokens) > kMaxCells) {
    return Invalid(StrCat(SizesText(options, retained_tokens), " are more than ", kMaxCells,
                          " cells; make one of them smaller"));
  }
  return CheckTypes(backend, options, storage_.ConfigFor(backend));
}

Status CausalCache::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckInit(backend, options));
  const int padding = storage_.ConfigFor(backend).cell_padding;
  KVCACHE_ASSIGN_OR_RETURN(const std::int32_t retained_tokens,
                           WindowEviction::RetainedTokens(causal_, options));
  const std::int64_t cells = RoundUp(CellsFor(options, retained_tokens), padding);
  try {
    cells_.Reset(TableFor(options, retained_tokens, cells));
    pass_.Reset(options.max_batch, {causal_.window, causal_.chunk});
    acceptance_.Reset(options.max_batch);
    eviction_.Reset(retained_tokens, options.max_sequences, options.max_batch);
    pool_ = std::make_shared<SnapshotPool>(cells_, storage_);
    captures_.Reset(pool_.get(), &cells_, options.max_sequences, causal_.window);
    starts_late_.assign(options.max_sequences, 0);
    sizes_text_ = SizesText(options, retained_tokens);
  } catch (const std::bad_alloc&) {
    cells_ = {};
    pass_ = {};
    acceptance_ = {};
    eviction_ = {};
    pool_ = {};
    captures_ = {};
    return {StatusCode::kOutOfMemory, "no memory for the metadata of " + SizesText(options)};
  }
  storage_.Open(backend, options, RoundUp(cells, std::lcm(padding, kCellTile)));
  return Status::Ok();
}

void CausalCache::Close() {
  EndPass();
  captures_.Clear();
  cells_.Unhold(staged_);
  if (pool_ != nullptr) pool_->Detach();
  pool_ = {};
  storage_.Close();
  pass_ = {};
  acceptance_ = {};
  mask_ = {};
  cells_ = {};
  eviction_ = {};
}

void CausalCache::EndPass() {
  cells_.DropDrafts();
  acceptance_.Clear();
  pass_.End();
  Unprepare();
}

void CausalCache::Unprepare() {
  captures_.DropPlanned();
  prepared_ = Prepared::kNothing;
}

// The roots of a tree must be at the end of their sequence.
Status CausalCache::CheckRoots(const Batch& batch) const {
  for (std::size_t i = 0; i < batch.parents.size(); ++i) {
    const Position length = cells_.history(batch.sequences[i]).length();
    if (batch.parents[i] != Drafts::kNone || batch.positions[i] == length) continue;
    return Invalid(StrCat("draft ", i, " has no parent and is at position ", batch.positions[i],
                          "; must be at ", length, ", the end of sequence ",
                          Index(batch.sequences[i])));
  }
  return Status::Ok();
}

Status CausalCache::CheckPositions(std::span<const ForwardPass::Token> tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto& [sequence, position, index] = tokens[i];
    if (i > 0 && tokens[i - 1].sequence == sequence && tokens[i - 1].position == position) {
      return Invalid(StrCat("tokens ", tokens[i - 1].index, " and ", index,
                            " of the batch are both at position ", position, " of sequence ",
                            Index(sequence), "; give parents if they are alternatives"));
    }
    if (cells_.history(sequence).CellOf(position) != RunList::kNoCell) {
      return Invalid(StrCat("token ", index, " of the batch is at position ", position,
                            ", which sequence ", Index(sequence),
                            " already holds; Remove it first"));
    }
  }
  return Status::Ok();
}

// In the worst case each token starts a run. The batch may still be refused, here or by another
// cache of a wrapper. The pass in progress then continues, so its spans must point at the new
// lists.
Status CausalCache::ReserveRuns(std::span<const ForwardPass::Token> tokens) {
  bool moved = false;
  for (std::size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    const SequenceId sequence = tokens[begin].sequence;
    while (end < tokens.size() && tokens[end].sequence == sequence) ++end;
    const HistoryRun* const runs = cells_.history(sequence).runs().data();
    if (!cells_.Reserve(sequence, end - begin)) {
      if (moved) pass_.Rebind(cells_);
      return {StatusCode::kOutOfMemory,
              StrCat("no memory for the runs of sequence ", Index(sequence))};
    }
    moved = moved || cells_.history(sequence).runs().data() != runs;
  }
  if (moved) pass_.Rebind(cells_);
  return Status::Ok();
}

Status CausalCache::CheckFreeCells(std::int32_t size, std::span<const Eviction> evictions) {
  const std::int32_t free = cells_.cells_without_drafts();
  if (free >= size || (eviction_.plan_fits() && !cells_.has_holds())) return Status::Ok();
  std::int32_t available = 0;
  Status status = pool_->MakeRoom(size, evictions, nullptr, available);
  if (status.code() != StatusCode::kCacheFull) {
    return std::move(status).WithContext("materialising a snapshot for the batch");
  }
  return {StatusCode::kCacheFull, StrCat("the batch needs ", size, " cells; ", available, " of ",
                                         cells_.cells(), " are free (", sizes_text_, ")")};
}

// A capture of a window holds the tokens that the pass evicts, so it is planned before the free
// cells are counted.
Status CausalCache::PlanCaptures(std::span<const ForwardPass::Token> tokens) {
  for (std::size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    const SequenceId sequence = tokens[begin].sequence;
    while (end < tokens.size() && tokens[end].sequence == sequence) ++end;
    const Position length =
        std::max(cells_.history(sequence).length(), tokens[end - 1].position + 1);
    KVCACHE_RETURN_IF_ERROR(
        captures_.Plan(sequence, length, end - begin, eviction_.PlannedFor(sequence)));
  }
  return Status::Ok();
}

Status CausalCache::PrepareForward(const Batch& batch, ForwardMode mode) {
  Unprepare();
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckBatch(batch, storage_.options()));
  prepared_size_ = static_cast<std::int32_t>(batch.size());
  if (mode == ForwardMode::kReserve) {
    prepared_ = Prepared::kReserve;
    return Status::Ok();
  }
  const std::span<const ForwardPass::Token> tokens = pass_.Order(batch);
  KVCACHE_RETURN_IF_ERROR(batch.parents.empty() ? CheckPositions(tokens) : CheckRoots(batch));
  const std::span<const Eviction> evictions = eviction_.Plan(cells_, tokens);
  Status status;
  if (captures_.any() && batch.parents.empty()) status = PlanCaptures(tokens);
  if (status.ok()) status = CheckFreeCells(prepared_size_, evictions);
  if (status.ok()) status = ReserveRuns(tokens);
  if (status.ok()) status = pass_.PrepareDrafts(batch, cells_);
  if (!status.ok()) {
    Unprepare();
    return status;
  }
  prepared_ = Prepared::kCompute;
  return Status::Ok();
}

void CausalCache::BeginForward() {
  assert(prepared_ != Prepared::kNothing);
  cells_.DropDrafts();
  acceptance_.Clear();
  if (prepared_ == Prepared::kReserve) {
    pass_.BeginReserve(prepared_size_, cells_);
  } else if (prepared_ == Prepared::kCompute) {
    eviction_.Evict(cells_);
    pass_.Begin(cells_);
    captures_.Fire();
  }
  prepared_ = Prepared::kNothing;
  masked_cells_ = {};
}

Status CausalCache::SetCausal(std::span<const std::int32_t> except) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  if (!pass_.active()) return Invalid("SetCausal outside a forward pass; call StartForward first");
  KVCACHE_RETURN_IF_ERROR(CheckQueries(except, pass_.drafts(), pass_.size()));
  pass_.SetNonCausal(except);
  masked_cells_ = {};
  return Status::Ok();
}

// The bytes of an accepted path move to the first cells of its sequence's drafts, so that rejected
// drafts do not fragment the history. After the move the pass cannot be computed any more, so it
// ends. Its drafts stay until FinishAccept or the next change.
Status CausalCache::PrepareAccept(std::span<const std::int32_t> last) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(pass_.drafts().CheckChosen(last));
  Unprepare();
  acceptance_.Plan(pass_, cells_, last);
  for (std::size_t i = 0; i < last.size() && captures_.any(); ++i) {
    const SequenceId sequence = pass_.drafts().sequence(last[i]);
    const Position length = pass_.drafts().position(last[i]) + 1;
    const Status status = captures_.Plan(sequence, length, pass_.size(), 0);
    if (status.ok()) continue;
    EndPass();
    return status;
  }
  pass_.End();
  for (int layer = 0; layer < storage_.layers().size(); ++layer) {
    const LayerKv* const storage = storage_.layers().Find(layer);
    if (storage == nullptr) continue;
    const Status status = acceptance_.MoveBytes(storage_.backend(), *storage);
    if (status.ok()) continue;
    EndPass();
    // kInvalidArgument would promise that nothing has changed.
    const bool refusal = status.code() == StatusCode::kInvalidArgument;
    return Status(refusal ? StatusCode::kInternal : status.code(),
                  "moving the accepted drafts: " + status.message());
  }
  return Status::Ok();
}

void CausalCache::FinishAccept() {
  for (const auto& [sequence, position, cell] : acceptance_.accepted()) {
    cells_.AcceptDraft(sequence, position, cell);
  }
  captures_.Fire();
  EndPass();
}

Status CausalCache::Put(const TensorView& k, const TensorView& v) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  if (!pass_.active()) return Invalid("Put outside a forward pass; call StartForward first");
  KVCACHE_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(k, v, pass_.size()));
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, storage_.Ensure(shape));
  if (pass_.reserving()) return Status::Ok();
  return storage_.backend().StoreKv(storage, k, v, pass_.cells());
}

Status CausalCache::EnsureMask() {
  if (masked_cells_.length > 0) return Status::Ok();
  const CellRun cells = VisibleCells(pass_.visibility(), storage_.config().cell_padding);
  const std::int64_t rows = RoundUp(pass_.size(), storage_.config().batch_padding);
  KVCACHE_RETURN_IF_ERROR(
      mask_.Build(pass_.visibility(), cells, rows, storage_.config().mask_type));
  masked_cells_ = cells;
  return Status::Ok();
}

Result<DenseKv> CausalCache::Get() {
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv layer, storage_.StorageForGet(pass_.active()));
  KVCACHE_RETURN_IF_ERROR(EnsureMask());
  return DenseViews(layer, masked_cells_, mask_.view());
}

Status CausalCache::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(src, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckSequence(dst, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckPrefix(length));
  if (src == dst) {
    cells_.Truncate(dst, length);
    ChangeLength(dst, length);
  } else {
    KVCACHE_RETURN_IF_ERROR(cells_.Share(src, dst, length));
    eviction_.MarkGrown(dst);
    captures_.Cancel(dst);
    starts_late_[Index(dst)] = starts_late_[Index(src)];
  }
  EndPass();
  return Status::Ok();
}

void CausalCache::ChangeLength(SequenceId sequence, Position length) {
  if (captures_.any()) captures_.Truncate(sequence, length);
  if (cells_.history(sequence).empty()) starts_late_[Index(sequence)] = 0;
}

// With a window, the oldest kept position must not be above the first one that a query at
// `position` sees. Without eviction, only positions that the caller skipped can be missing.
bool CausalCache::CanResume(SequenceId sequence, Position position) const {
  if (!storage_.ready() || !cells_.Knows(sequence)) return false;
  const RunList& history = cells_.history(sequence);
  if (position < 0 || position > history.length()) return false;
  if (history.empty() || (eviction_.keeps_everything() && starts_late_[Index(sequence)] == 0)) {
    return true;
  }
  return history.runs().front().position <= std::max(0, position - causal_.window + 1);
}

Result<Position> CausalCache::PrepareRestore(SequenceId sequence, Position target) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  const Position kept = std::clamp(target, 0, cells_.history(sequence).length());
  return CanResume(sequence, kept) ? kept : 0;
}

bool CausalCache::RemovesMiddle(SequenceId sequence, Position begin, Position end) const {
  return begin < end && end < cells_.history(sequence).length();
}

Status CausalCache::CheckRemove(SequenceId sequence, Position begin, Position end) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  if (!RemovesMiddle(sequence, begin, end)) return Status::Ok();
  if (!causal_.shift_keys) {
    return {StatusCode::kUnsupported,
            StrCat("positions [", begin, ", ", end, ") of ", cells_.history(sequence).length(),
                   " are a middle range; removing them needs CausalOptions::shift_keys")};
  }
  return pool_->CheckRemoveMiddle(sequence, end);
}

Status CausalCache::Remove(SequenceId sequence, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));
  if (RemovesMiddle(sequence, begin, end)) return RemoveMiddle(sequence, begin, end);
  if (end >= cells_.history(sequence).length()) {
    cells_.Truncate(sequence, begin);
    ChangeLength(sequence, begin);
  }
  EndPass();
  return Status::Ok();
}

Status CausalCache::RemoveMiddle(SequenceId sequence, Position begin, Position end) {
  captures_.Cancel(sequence);
  KVCACHE_RETURN_IF_ERROR(pool_->MakeRoomForRemoval(sequence, end));
  KVCACHE_ASSIGN_OR_RETURN(const MiddleRemoval removal, cells_.RemoveMiddle(sequence, begin, end));
  EndPass();
  for (int layer = 0; layer < storage_.layers().size(); ++layer) {
    const LayerKv* storage = storage_.layers().Find(layer);
    if (storage == nullptr) continue;
    if (!removal.copies.empty()) {
      KVCACHE_RETURN_IF_ERROR(storage_.backend().CopyCells(*storage, removal.copies));
    }
    KVCACHE_RETURN_IF_ERROR(causal_.shift_keys(layer, *storage, removal.shifted, begin - end));
  }
  return Status::Ok();
}

// Bytes are copied to free cells first. The metadata changes only after all copies have succeeded.
Status CausalCache::Compact() {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  EndPass();
  KVCACHE_ASSIGN_OR_RETURN(Compaction plan, cells_.PlanCompaction());
  for (int layer = 0; layer < storage_.layers().size() && !plan.moves.empty(); ++layer) {
    const LayerKv* storage = storage_.layers().Find(layer);
    if (storage != nullptr) {
      KVCACHE_RETURN_IF_ERROR(storage_.backend().CopyCells(*storage, plan.moves));
    }
  }
  cells_.Apply(std::move(plan));
  return Status::Ok();
}

// ---- Snapshots.

Result<const CausalSnapshot*> CausalCache::OwnSnapshot(const Snapshot* snapshot) const {
  const auto* const own = dynamic_cast<const CausalSnapshot*>(snapshot);
  if (own != nullptr && own->pool() == pool_.get()) return own;
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

// A window's snapshot is what the token at `end` sees, and one token more, so that a sequence can go
// back over a stop token.
Result<std::unique_ptr<Snapshot>> CausalCache::TakeSnapshot(SequenceId sequence, Position begin,
                                                            Position end) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  const RunList& history = cells_.history(sequence);
  if (end > history.length()) {
    return Invalid(StrCat("a snapshot of positions [", begin, ", ", end, ") of sequence ",
                          Index(sequence), ", which has ", history.length(), " tokens"));
  }
  if (causal_.window > 0 && !CanResume(sequence, end)) {
    return Status(StatusCode::kUnsupported,
                  StrCat("a snapshot at ", end, " of sequence ", Index(sequence), ", whose first ",
                         history.runs().front().position, " tokens have left the window of ",
                         causal_.window));
  }
  const Position first = causal_.window > 0 ? std::max(0, end - causal_.window) : begin;
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, pool_->Make(begin, end, history.runs().size()));
  pool_->Hold(*snapshot, sequence, first, end);
  if (begin == end && snapshot->first() == end) return std::unique_ptr<Snapshot>();
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

Status CausalCache::ScheduleCaptures(SequenceId sequence, Position begin,
                                     std::span<const Position> lengths) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  Unprepare();
  return captures_.Schedule(sequence, begin, lengths);
}

Result<std::vector<std::unique_ptr<Snapshot>>> CausalCache::TakeCaptures(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  Unprepare();
  return captures_.Take(sequence);
}

Status CausalCache::CheckRoomFor(SequenceId sequence, const CausalSnapshot& snapshot,
                                 Position target) const {
  const std::int32_t needed = SnapshotPool::CountOwned(snapshot, target);
  if (needed <= cells_.free_cells()) return Status::Ok();
  const Position begin = causal_.window > 0 ? 0 : snapshot.begin();
  KVCACHE_ASSIGN_OR_RETURN(const std::int32_t available,
                           pool_->CountAvailable(&snapshot, sequence, begin));
  if (available >= needed) return Status::Ok();
  return {StatusCode::kCacheFull,
          StrCat("restoring ", needed, " tokens needs as many cells; ", available, " of ",
                 cells_.cells(), " are free (", sizes_text_, ")")};
}

void CausalCache::CancelCaptures(SequenceId sequence) {
  if (storage_.ready() && cells_.Knows(sequence)) captures_.Cancel(sequence);
}

Status CausalCache::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                 Position target) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  const CausalSnapshot* own = nullptr;
  if (snapshot != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(own, OwnSnapshot(snapshot));
  }
  const Position length = cells_.history(sequence).length();
  const Position last = own == nullptr ? length : std::max(own->end(), length);
  if (target < 0 || target > last || (own != nullptr && target > own->end())) {
    return Invalid(StrCat("restoring sequence ", Index(sequence), " to ", target,
                          " tokens; must be in [0, ", own == nullptr ? length : own->end(), "]"));
  }
  const bool window = causal_.window > 0;
  if (own == nullptr || (!window && target <= own->begin())) {
    if (CanResume(sequence, target)) return Status::Ok();
    return {StatusCode::kUnsupported, StrCat("sequence ", Index(sequence), " has ", length,
                                             " tokens and cannot go back to ", target)};
  }
  if (window) {
    if (own->first() <= std::max(0, target - causal_.window + 1)) {
      return CheckRoomFor(sequence, *own, target);
    }
    return {StatusCode::kUnsupported,
            StrCat("the snapshot has positions [", own->first(), ", ", own->end(),
                   "), which do not fill a window of ", causal_.window, " before ", target)};
  }
  if (length >= own->begin()) return CheckRoomFor(sequence, *own, target);
  return {StatusCode::kUnsupported,
          StrCat("the snapshot begins at ", own->begin(), ", and sequence ", Index(sequence),
                 " has ", length, " tokens; restore what lies between first")};
}

// Claims cells without a change of the sequence if there are enough of them. Otherwise it drops what
// the restore replaces first.
Status CausalCache::BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  Unprepare();
  const bool window = causal_.window > 0;
  restoring_ = {.sequence = sequence, .begin = target, .target = target};
  const auto* const own = static_cast<const CausalSnapshot*>(snapshot);
  if (own == nullptr || (!window && target <= own->begin())) return Status::Ok();
  restoring_.begin = window ? 0 : own->begin();
  restoring_.with_snapshot = true;
  const std::int32_t needed = SnapshotPool::CountOwned(*own, target);
  // The drafts of the pass in progress keep their cells, in case that the restore is abandoned.
  const auto drafts = static_cast<std::int32_t>(cells_.drafts().size());
  std::int32_t available = 0;
  Status status = needed == 0 ? Status::Ok() : pool_->MakeRoom(needed + drafts, {}, own, available);
  if (status.code() == StatusCode::kCacheFull) {
    EndPass();
    cells_.Truncate(sequence, restoring_.begin);
    ChangeLength(sequence, restoring_.begin);
    restoring_.reuses = true;
    status = pool_->MakeRoom(needed, {}, own, available);
  }
  if (status.ok()) status = pool_->Stage(*own, sequence, target, staged_);
  if (status.ok() && !cells_.Reserve(sequence, staged_.runs.runs().size() + 1)) {
    cells_.Unhold(staged_);
    status = {StatusCode::kOutOfMemory, "no memory for the runs of a restored sequence"};
  }
  pass_.Rebind(cells_);
  if (status.ok()) return status;
  if (restoring_.reuses) cells_.Truncate(sequence, 0);
  return std::move(status).WithContext("restoring a snapshot");
}

void CausalCache::FinishRestore() {
  const auto& [sequence, begin, target, with_snapshot, reuses] = restoring_;
  EndPass();
  if (with_snapshot) captures_.Cancel(sequence);
  if (with_snapshot) {
    cells_.Adopt(sequence, begin, staged_);
    eviction_.MarkGrown(sequence);
    const RunList& history = cells_.history(sequence);
    starts_late_[Index(sequence)] =
        causal_.window > 0 && !history.empty() && history.runs().front().position > 0;
  } else {
    cells_.Truncate(sequence, begin);
    ChangeLength(sequence, begin);
  }
}

bool CausalCache::AbandonRestore() {
  cells_.Unhold(staged_);
  return !restoring_.reuses;
}

Status CausalCache::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&parent).status());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&child).status());
  KVCACHE_RETURN_IF_ERROR(CheckNeighbors(parent, child));
  if (causal_.window > 0) return Status::Ok();
  return SnapshotPool::PrepareJoin(static_cast<CausalSnapshot&>(parent),
                                   static_cast<const CausalSnapshot&>(child));
}

Result<std::unique_ptr<Snapshot>> CausalCache::MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                              std::unique_ptr<Snapshot>& child) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNull(parent, child));
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
  if (causal_.window > 0) {
    child->SetRange(parent->begin(), child->end());
    parent.reset();
    return std::move(child);
  }
  pool_->Join(static_cast<CausalSnapshot&>(*parent), static_cast<CausalSnapshot&>(*child));
  child.reset();
  return std::move(parent);
}

Result<SnapshotParts> CausalCache::SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                                 Position position) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(snapshot.get()).status());
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  SnapshotParts parts;
  if (causal_.window == 0) {
    KVCACHE_ASSIGN_OR_RETURN(parts.second,
                             pool_->Cut(static_cast<CausalSnapshot&>(*snapshot), position));
    parts.first = std::move(snapshot);
  } else {
    parts.second = std::move(snapshot);
  }
  return parts;
}

Status CausalCache::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&snapshot).status());
  Unprepare();
  return pool_->Materialize(static_cast<CausalSnapshot&>(snapshot));
}

std::string CausalCache::Identity() const {
  const CacheOptions& options = storage_.options();
  const bool blocks =
      InfoOf(options.k_type).block_size > 1 || InfoOf(options.v_type).block_size > 1;
  return StrCat("causal, window ", causal_.window, ", chunk ", causal_.chunk, ", K ",
                InfoOf(options.k_type).name, ", V ", InfoOf(options.v_type).name,
                blocks ? ", blocks of the backend " : "",
                blocks ? storage_.backend().name() : std::string_view(),
                causal_.keys_identity.empty() ? "" : ", ", causal_.keys_identity);
}

Result<std::string> CausalCache::Fingerprint() const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return Identity() + "\n" + storage_.layers().ShapesText();
}

Result<std::int64_t> CausalCache::ExportSize(const Snapshot& snapshot) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
  return static_cast<std::int64_t>(WriteHeader(header).size()) + header.payload;
}

Result<SnapshotHeader> CausalCache::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_ASSIGN_OR_RETURN(const CausalSnapshot* own, OwnSnapshot(&snapshot));
  SnapshotHeader header;
  header.kind = SnapshotKind::kCausal;
  header.begin = own->begin();
  header.end = own->end();
  header.fingerprint = Identity();
  KVCACHE_RETURN_IF_ERROR(pool_->Describe(*own, header));
  return header;
}

// Bytes of lanes without a position are zero, so that equal snapshots have equal bytes.
Status CausalCache::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
  const std::vector<std::byte> text = WriteHeader(header);
  KVCACHE_RETURN_IF_ERROR(
      CheckExportSize(static_cast<std::int64_t>(text.size()) + header.payload, bytes.size()));
  std::copy(text.begin(), text.end(), bytes.begin());
  const std::span<std::byte> payload = bytes.subspan(text.size());
  std::fill(payload.begin(), payload.end(), std::byte{0});
  return pool_->CopyOut(static_cast<const CausalSnapshot&>(snapshot), header, payload);
}

Result<std::unique_ptr<Snapshot>> CausalCache::Import(std::span<const std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_ASSIGN_OR_RETURN(ReadSnapshotHeader read, ReadHeader(bytes));
  SnapshotHeader& header = read.header;
  KVCACHE_RETURN_IF_ERROR(CheckOrigin(header, SnapshotKind::kCausal, Identity()));
  KVCACHE_RETURN_IF_ERROR(CheckLayers(header.layers, storage_));
  const Position least = causal_.window > 0 ? 0 : header.begin;
  if (!header.ranges.empty() &&
      (header.ranges.front().begin < least || header.ranges.back().end > header.end)) {
    return Status(StatusCode::kCorrupt,
                  StrCat("snapshot bytes: positions outside of [", least, ", ", header.end, ")"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckPayload(header, SnapshotPool::CellsOf(header)));
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, pool_->Make(header.begin, header.end, 0));
  try {
    KVCACHE_RETURN_IF_ERROR(pool_->CopyIn(*snapshot, header, bytes.subspan(read.size)));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for an imported snapshot");
  }
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

void CausalCache::SetMaterializeHook(MaterializeHook hook) {
  if (pool_ != nullptr) pool_->SetHook(std::move(hook));
}

std::unique_ptr<Cache> MakeCausalCache(CausalOptions options) {
  return std::make_unique<CausalCache>(std::move(options));
}

}  // namespace kvcache
