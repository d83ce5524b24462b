#include "kvcache/causal_cache.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "cache/causal_cache_impl.h"
#include "cache/layer_views.h"

namespace kvcache {
namespace {

// Placement on tile boundaries put a token in the lane of its position.
std::int32_t WholeTiles(std::int32_t cells) {
  return cells < kCellTile ? cells : cells / kCellTile * kCellTile;
}

// What is kept, in cells; memory 0: everything.
std::int64_t CellsFor(const CacheOptions& options, std::int32_t retained_tokens) {
  const std::int64_t sequences = options.max_sequences;
  return retained_tokens == 0 ? sequences * options.capacity
                              : sequences * retained_tokens + options.max_batch;
}

// The oldest token goes only once the newest has come: a ring needs a cell more than it keeps.
CellTableOptions TableFor(const CacheOptions& options, std::int32_t retained_tokens,
                          std::int64_t cells) {
  CellTableOptions table{.cells = static_cast<std::int32_t>(cells),
                         .sequences = options.max_sequences,
                         .drafts = options.max_batch,
                         .sequence_stride = WholeTiles(options.capacity)};
  if (retained_tokens == 0) return table;
  const std::int32_t share = table.cells / options.max_sequences;
  table.placement = Placement::kRing;
  table.sequence_stride = WholeTiles(share) > retained_tokens ? WholeTiles(share) : share;
  return table;
}

std::string RetainedSizesText(const CacheOptions& options, std::int32_t retained_tokens) {
  if (retained_tokens == 0) return SizesText(options);
  return "max_sequences " + std::to_string(options.max_sequences) + " x retained_tokens " +
         std::to_string(retained_tokens) + " + max_batch " + std::to_string(options.max_batch);
}

}  // namespace

Status CausalCache::SetConfig(const CacheConfig& config) {
  if (state_ != CacheState::kNew) return Invalid("the configuration must be set before Init");
  if (config_.has_value()) return Invalid("the configuration was already set");
  KVCACHE_RETURN_IF_ERROR(CheckConfig(config));
  config_ = config;
  return Status::Ok();
}

Status CausalCache::CheckInit(const KvBackend& backend, const CacheOptions& options) const {
  if (state_ != CacheState::kNew) return Invalid("the cache was already initialised");
  const CacheConfig config = config_.value_or(backend.preferred_cache_config());
  KVCACHE_RETURN_IF_ERROR(CheckConfig(config));
  KVCACHE_RETURN_IF_ERROR(CheckSizes(options));
  KVCACHE_ASSIGN_OR_RETURN(const std::int32_t retained_tokens,
                           WindowEviction::RetainedTokens(causal_, options));
  if (CellsFor(options, retained_tokens) > kMaxCells) {
    return Invalid(RetainedSizesText(options, retained_tokens) + " are more than " +
                   std::to_string(kMaxCells) + " cells");
  }
  return CheckTypes(backend, options, config);
}

Status CausalCache::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckInit(backend, options));
  const CacheConfig config = config_.value_or(backend.preferred_cache_config());
  KVCACHE_ASSIGN_OR_RETURN(const std::int32_t retained_tokens,
                           WindowEviction::RetainedTokens(causal_, options));
  const std::int64_t cells = RoundUp(CellsFor(options, retained_tokens), config.cell_padding);
  try {
    cells_.Reset(TableFor(options, retained_tokens, cells));
    pass_.Reset(options.max_batch, {causal_.window, causal_.chunk});
    acceptance_.Reset(options.max_batch);
    eviction_.Reset(retained_tokens, options.max_sequences, options.max_batch);
    sizes_text_ = RetainedSizesText(options, retained_tokens);
  } catch (const std::bad_alloc&) {
    cells_ = {};
    pass_ = {};
    acceptance_ = {};
    eviction_ = {};
    return {StatusCode::kOutOfMemory, "no memory for the metadata of " + SizesText(options)};
  }
  LayerKv prototype;
  prototype.k_type = options.k_type;
  prototype.v_type = options.v_type;
  prototype.layout = config.layout;
  prototype.v_transposed = config.v_transposed;
  prototype.cells = RoundUp(cells, std::lcm(config.cell_padding, kCellTile));
  layers_.Reset(backend, prototype);
  backend_ = &backend;
  config_ = config;
  options_ = options;
  state_ = CacheState::kReady;
  return Status::Ok();
}

void CausalCache::Close() {
  state_ = CacheState::kClosed;
  EndPass();
  pass_ = {};
  acceptance_ = {};
  mask_ = {};
  layers_ = {};
  cells_ = {};
  eviction_ = {};
  backend_ = nullptr;
}

void CausalCache::EndPass() {
  cells_.DropDrafts();
  acceptance_.Clear();
  pass_.End();
  prepared_ = Prepared::kNothing;
}

// The first drafts of a tree go on where their sequence ends.
Status CausalCache::CheckRoots(const Batch& batch) const {
  for (std::size_t i = 0; i < batch.parents.size(); ++i) {
    const Position length = cells_.history(batch.sequences[i]).length();
    if (batch.parents[i] != Drafts::kNone || batch.positions[i] == length) continue;
    return Invalid("draft " + std::to_string(i) + " of the batch is at position " +
                   std::to_string(batch.positions[i]) + ", sequence " +
                   std::to_string(Index(batch.sequences[i])) + " goes on at " +
                   std::to_string(length));
  }
  return Status::Ok();
}

Status CausalCache::CheckPositions(std::span<const ForwardPass::Token> tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto& [sequence, position, index] = tokens[i];
    if (i > 0 && tokens[i - 1].sequence == sequence && tokens[i - 1].position == position) {
      return Invalid("tokens " + std::to_string(tokens[i - 1].index) + " and " +
                     std::to_string(index) + " of the batch are both at position " +
                     std::to_string(position) + " of sequence " + std::to_string(Index(sequence)) +
                     "; alternatives need parents");
    }
    if (cells_.history(sequence).CellOf(position) != RunList::kNoCell) {
      return Invalid("token " + std::to_string(index) + " of the batch: sequence " +
                     std::to_string(Index(sequence)) + " already holds position " +
                     std::to_string(position));
    }
  }
  return Status::Ok();
}

// At worst each token starts a run. The batch may yet be refused, here or by another cache: then
// the pass in progress must find its runs where they are now.
Status CausalCache::ReserveRuns(std::span<const ForwardPass::Token> tokens) {
  bool moved = false;
  for (std::size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    const SequenceId sequence = tokens[begin].sequence;
    while (end < tokens.size() && tokens[end].sequence == sequence) ++end;
    const HistoryRun* const runs = cells_.history(sequence).runs().data();
    if (!cells_.Reserve(sequence, end - begin)) {
      if (moved) pass_.Rebind(cells_);
      return {StatusCode::kOutOfMemory,
              "no memory for the runs of sequence " + std::to_string(Index(sequence))};
    }
    moved = moved || cells_.history(sequence).runs().data() != runs;
  }
  if (moved) pass_.Rebind(cells_);
  return Status::Ok();
}

Status CausalCache::CheckFreeCells(std::int32_t size, std::span<const Eviction> evictions) {
  const std::int32_t free = cells_.cells_without_drafts();
  if (free >= size || eviction_.plan_fits()) return Status::Ok();
  const std::int32_t room = free + cells_.CountFreed(evictions);
  if (room >= size) return Status::Ok();
  return {StatusCode::kCacheFull,
          "the batch needs " + std::to_string(size) + " cells, " + std::to_string(room) + " of " +
              std::to_string(cells_.cells()) + " are free (" + sizes_text_ + ")"};
}

Status CausalCache::PrepareForward(const Batch& batch, ForwardMode mode) {
  prepared_ = Prepared::kNothing;
  KVCACHE_RETURN_IF_ERROR(CheckReady(state_));
  KVCACHE_RETURN_IF_ERROR(CheckBatch(batch, options_));
  prepared_size_ = static_cast<std::int32_t>(batch.size());
  if (mode == ForwardMode::kReserve) {
    prepared_ = Prepared::kReserve;
    return Status::Ok();
  }
  const std::span<const ForwardPass::Token> tokens = pass_.Order(batch);
  KVCACHE_RETURN_IF_ERROR(batch.parents.empty() ? CheckPositions(tokens) : CheckRoots(batch));
  KVCACHE_RETURN_IF_ERROR(CheckFreeCells(prepared_size_, eviction_.Plan(cells_, tokens)));
  KVCACHE_RETURN_IF_ERROR(ReserveRuns(tokens));
  KVCACHE_RETURN_IF_ERROR(pass_.PrepareDrafts(batch, cells_));
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
  }
  prepared_ = Prepared::kNothing;
  masked_cells_ = {};
}

Status CausalCache::SetCausal(std::span<const std::int32_t> except) {
  KVCACHE_RETURN_IF_ERROR(CheckReady(state_));
  if (!pass_.active()) return Invalid("SetCausal outside a forward pass");
  KVCACHE_RETURN_IF_ERROR(CheckQueries(except, pass_.drafts(), pass_.size()));
  pass_.SetNonCausal(except);
  masked_cells_ = {};
  return Status::Ok();
}

// Bytes of a path move to the first cells of its sequence's drafts, so that no history is cut to
// pieces by drafts that were there. Once they have, there is nothing left to attend to: the pass
// is over, and its drafts wait.
Status CausalCache::PrepareAccept(std::span<const std::int32_t> last) {
  KVCACHE_RETURN_IF_ERROR(CheckReady(state_));
  KVCACHE_RETURN_IF_ERROR(pass_.drafts().CheckChosen(last));
  acceptance_.Plan(pass_, cells_, last);
  pass_.End();
  prepared_ = Prepared::kNothing;
  for (int layer = 0; layer < layers_.size(); ++layer) {
    const LayerKv* const storage = layers_.Find(layer);
    if (storage == nullptr) continue;
    const Status status = acceptance_.MoveBytes(*backend_, *storage);
    if (status.ok()) continue;
    EndPass();
    // Not to be mistaken for a refusal, which changes nothing.
    const bool refusal = status.code() == StatusCode::kInvalidArgument;
    return Status(refusal ? StatusCode::kInternal : status.code(),
                  "moving the path that is kept: " + status.message());
  }
  return Status::Ok();
}

void CausalCache::FinishAccept() {
  for (const auto& [sequence, position, cell] : acceptance_.accepted()) {
    cells_.AcceptDraft(sequence, position, cell);
  }
  EndPass();
}

Status CausalCache::Put(const TensorView& k, const TensorView& v) {
  KVCACHE_RETURN_IF_ERROR(CheckReady(state_));
  if (!pass_.active()) return Invalid("Put outside a forward pass");
  KVCACHE_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(k, v, pass_.size()));
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, layers_.Ensure(layer_, shape));
  if (pass_.reserving()) return Status::Ok();
  return backend_->StoreKv(storage, k, v, pass_.cells());
}

Result<LayerKv> CausalCache::Storage() {
  KVCACHE_RETURN_IF_ERROR(CheckReady(state_));
  if (const LayerKv* storage = layers_.Find(layer_); storage != nullptr) return *storage;
  return Status(StatusCode::kNotFound, "layer " + std::to_string(layer_) + " was never put");
}

Status CausalCache::EnsureMask() {
  if (masked_cells_.length > 0) return Status::Ok();
  const CellRun cells = VisibleCells(pass_.visibility(), config_->cell_padding);
  const std::int64_t rows = RoundUp(pass_.size(), config_->batch_padding);
  KVCACHE_RETURN_IF_ERROR(mask_.Build(pass_.visibility(), cells, rows, config_->mask_type));
  masked_cells_ = cells;
  return Status::Ok();
}

Result<DenseKv> CausalCache::Get() {
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, Storage());
  if (!pass_.active()) return Invalid("Get outside a forward pass");
  if (config_->layout != KvLayout::kPlain) {
    return Status(StatusCode::kUnsupported, "views of the history need the plain layout");
  }
  KVCACHE_RETURN_IF_ERROR(EnsureMask());
  return DenseKv{KeysOf(storage, masked_cells_), ValuesOf(storage, masked_cells_), mask_.view()};
}

Status CausalCache::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  KVCACHE_RETURN_IF_ERROR(CheckReady(state_));
  KVCACHE_RETURN_IF_ERROR(CheckSequence(src, options_));
  KVCACHE_RETURN_IF_ERROR(CheckSequence(dst, options_));
  KVCACHE_RETURN_IF_ERROR(CheckPrefix(length));
  if (src == dst) {
    cells_.Truncate(dst, length);
  } else {
    KVCACHE_RETURN_IF_ERROR(cells_.Share(src, dst, length));
    eviction_.MarkGrown(dst);
  }
  EndPass();
  return Status::Ok();
}

// What a query at `position` sees must not have been let go of. Where everything is kept, all
// that can be missing is what was never there.
bool CausalCache::CanResume(SequenceId sequence, Position position) const {
  if (state_ != CacheState::kReady || !cells_.Knows(sequence)) return false;
  const RunList& history = cells_.history(sequence);
  if (position < 0 || position > history.length()) return false;
  if (eviction_.keeps_everything() || history.empty()) return true;
  return history.runs().front().position <= std::max(0, position - causal_.window + 1);
}

Position CausalCache::PrepareRestore(SequenceId sequence, Position target) {
  if (!CheckReady(state_).ok() || !cells_.Knows(sequence)) return 0;
  const Position kept = std::clamp(target, 0, cells_.history(sequence).length());
  return CanResume(sequence, kept) ? kept : 0;
}

bool CausalCache::RemovesMiddle(SequenceId sequence, Position begin, Position end) const {
  return begin < end && end < cells_.history(sequence).length();
}

Status CausalCache::CheckRemove(SequenceId sequence, Position begin, Position end) const {
  KVCACHE_RETURN_IF_ERROR(CheckReady(state_));
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, options_));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  if (!RemovesMiddle(sequence, begin, end)) return Status::Ok();
  if (!causal_.shift_keys) {
    return {StatusCode::kUnsupported, "positions [" + std::to_string(begin) + ", " +
                                          std::to_string(end) + ") of " +
                                          std::to_string(cells_.history(sequence).length()) +
                                          " cannot be removed without a function that shifts keys"};
  }
  return cells_.CheckRemoveMiddle(sequence, end);
}

Status CausalCache::Remove(SequenceId sequence, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));
  if (RemovesMiddle(sequence, begin, end)) return RemoveMiddle(sequence, begin, end);
  if (end >= cells_.history(sequence).length()) cells_.Truncate(sequence, begin);
  EndPass();
  return Status::Ok();
}

Status CausalCache::RemoveMiddle(SequenceId sequence, Position begin, Position end) {
  KVCACHE_ASSIGN_OR_RETURN(const MiddleRemoval removal, cells_.RemoveMiddle(sequence, begin, end));
  EndPass();
  for (int layer = 0; layer < layers_.size(); ++layer) {
    const LayerKv* storage = layers_.Find(layer);
    if (storage == nullptr) continue;
    if (!removal.copies.empty()) {
      KVCACHE_RETURN_IF_ERROR(backend_->CopyCells(*storage, removal.copies));
    }
    KVCACHE_RETURN_IF_ERROR(causal_.shift_keys(layer, *storage, removal.shifted, begin - end));
  }
  return Status::Ok();
}

// Bytes first, to cells that are free: until they have all arrived nothing has changed.
Status CausalCache::Compact() {
  KVCACHE_RETURN_IF_ERROR(CheckReady(state_));
  EndPass();
  KVCACHE_ASSIGN_OR_RETURN(Compaction plan, cells_.PlanCompaction());
  for (int layer = 0; layer < layers_.size() && !plan.moves.empty(); ++layer) {
    const LayerKv* storage = layers_.Find(layer);
    if (storage != nullptr) {
      KVCACHE_RETURN_IF_ERROR(backend_->CopyCells(*storage, plan.moves));
    }
  }
  cells_.Apply(std::move(plan));
  return Status::Ok();
}

std::unique_ptr<Cache> MakeCausalCache(CausalOptions options) {
  return std::make_unique<CausalCache>(std::move(options));
}

}  // namespace kvcache
