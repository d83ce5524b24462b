#include "kvcache/causal_cache.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "base/strings.h"
#include "cache/causal/causal_cache_impl.h"
#include "cache/pass/layer_views.h"

namespace kvcache {
namespace {

// With strides of whole tiles a token is in the lane of its position.
std::int32_t WholeTiles(std::int32_t cells) {
  return cells < kCellTile ? cells : cells / kCellTile * kCellTile;
}

// Returns the number of cells before padding. retained_tokens 0: nothing is evicted.
std::int64_t CellsFor(const CacheOptions& options, std::int32_t retained_tokens) {
  const std::int64_t sequences = options.max_sequences;
  if (retained_tokens > 0) return sequences * retained_tokens + options.max_batch + options.cells;
  return options.cells > 0 ? options.cells : sequences * options.capacity;
}

// A ring needs as many cells as tokens are retained: the oldest one is evicted before the next one
// is claimed. It is rounded down to whole tiles if that leaves enough.
CellTableOptions TableFor(const CacheOptions& options, std::int32_t retained_tokens,
                          std::int64_t cells) {
  CellTableOptions table{.cells = static_cast<std::int32_t>(cells),
                         .sequences = options.max_sequences,
                         .drafts = options.max_batch,
                         .sequence_stride = WholeTiles(options.capacity),
                         .tracks_blocks = options.releases_memory,
                         .lowest_first = options.releases_memory};
  if (retained_tokens == 0) return table;
  const std::int32_t share = table.cells / options.max_sequences;
  table.placement = Placement::kRing;
  table.sequence_stride = WholeTiles(share) >= retained_tokens ? WholeTiles(share) : share;
  return table;
}

std::string SizesText(const CacheOptions& options, std::int32_t retained_tokens) {
  if (retained_tokens == 0) return SizesText(options);
  return StrCat("max_sequences ", options.max_sequences, " x retained_tokens ", retained_tokens,
                " + max_batch ", options.max_batch,
                options.cells > 0 ? StrCat(" + cells ", options.cells) : "");
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
  return CheckTypes(backend, options, CacheStorage::ConfigFor(backend, options));
}

Status CausalCache::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckInit(backend, options));
  const int padding = CacheStorage::ConfigFor(backend, options).cell_padding;
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
    transactions_.Reset(options.max_sequences);
    starts_late_.assign(options.max_sequences, 0);
    sizes_text_ = SizesText(options, retained_tokens);
  } catch (const std::bad_alloc&) {
    cells_ = {};
    pass_ = {};
    acceptance_ = {};
    eviction_ = {};
    pool_ = {};
    captures_ = {};
    transactions_ = {};
    return {StatusCode::kOutOfMemory, "no memory for the metadata of " + SizesText(options)};
  }
  const int multiple = options.releases_memory ? kReleasingCells : kCellTile;
  storage_.Open(backend, options, RoundUp(cells, std::lcm(padding, multiple)));
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

std::int64_t CausalCache::FreeCells() const {
  if (causal_.window > 0) return std::numeric_limits<std::int64_t>::max();
  return storage_.ready() ? cells_.free_cells() : 0;
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
  const bool fits = eviction_.plan_fits() && !cells_.has_holds() && !transactions_.any();
  if (free >= size || fits) return Status::Ok();
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
  KVCACHE_RETURN_IF_ERROR(transactions_.CheckWrites(batch));
  const std::span<const ForwardPass::Token> tokens = pass_.Order(batch);
  KVCACHE_RETURN_IF_ERROR(batch.parents.empty() ? CheckPositions(tokens) : CheckRoots(batch));
  const std::span<const Eviction> evictions = eviction_.Plan(cells_, tokens, transactions_);
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
    Status status = captures_.Plan(sequence, length, pass_.size(), 0);
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
  if (const std::int64_t block = storage_.layers().releasable_cells(); block > cells_.block()) {
    try {
      cells_.SetBlock(block);
    } catch (const std::bad_alloc&) {
      return {StatusCode::kOutOfMemory, "no memory for the blocks of cells"};
    }
  }
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

Position CausalCache::Length(SequenceId sequence) const {
  return storage_.ready() && cells_.Knows(sequence) ? cells_.history(sequence).length() : 0;
}

Status CausalCache::FindCells(SequenceId sequence, Position begin, Position end,
                              std::vector<HistoryRun>& runs) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  const RunList& history = cells_.history(sequence);
  const auto range = [&] {
    return StrCat("a view of positions [", begin, ", ", end, ") of sequence ", Index(sequence));
  };
  if (end > history.length()) {
    return Invalid(StrCat(range(), ", which has ", history.length(), " tokens"));
  }
  Position next = begin;
  runs.clear();
  try {
    for (std::size_t i = history.FirstEndingAfter(begin); next < end; ++i) {
      const HistoryRun part = Clip(history.runs()[i], begin, end);
      if (part.length == 0 || part.position != next) break;
      runs.push_back(part);
      next += part.length;
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for a view of a sequence"};
  }
  if (next == end) return Status::Ok();
  return {StatusCode::kUnsupported, StrCat(range(), ", which has no token at ", next)};
}

Status CausalCache::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(src, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckSequence(dst, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckPrefix(length));
  KVCACHE_RETURN_IF_ERROR(transactions_.CheckChange(dst));
  if (src == dst) {
    Truncate(dst, length);
  } else {
    KVCACHE_RETURN_IF_ERROR(cells_.Share(src, dst, length));
    eviction_.MarkGrown(dst);
    captures_.Cancel(dst);
    starts_late_[Index(dst)] = starts_late_[Index(src)];
  }
  EndPass();
  return Status::Ok();
}

void CausalCache::Truncate(SequenceId sequence, Position length) {
  cells_.Truncate(sequence, length);
  ChangeLength(sequence, length);
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
  KVCACHE_RETURN_IF_ERROR(transactions_.CheckChange(sequence));
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
  if (end >= cells_.history(sequence).length()) Truncate(sequence, begin);
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

Status CausalCache::EvictWindow(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(transactions_.CheckChange(sequence));
  EndPass();
  eviction_.EvictOne(cells_, sequence);
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

std::unique_ptr<Cache> MakeCausalCache(CausalOptions options) {
  return std::make_unique<CausalCache>(std::move(options));
}

}  // namespace kvcache
