#include "cache/causal/causal_pass.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/pass/layer_views.h"

namespace kvcache {

void CausalPass::Reset(int max_batch) {
  pass_.Reset(max_batch, {parts_.options.window, parts_.options.chunk});
  acceptance_.Reset(max_batch);
}

void CausalPass::Clear() {
  pass_ = {};
  acceptance_ = {};
  mask_ = {};
}

void CausalPass::End() {
  parts_.cells.DropDrafts();
  acceptance_.Clear();
  pass_.End();
  Unprepare();
}

void CausalPass::Unprepare() {
  parts_.captures.DropPlanned();
  prepared_ = Prepared::kNothing;
}

void CausalPass::PrefetchCells(Tokens tokens) const {
  const auto for_each_sequence = [&](const auto& prefetch) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i == 0 || tokens[i].sequence != tokens[i - 1].sequence) prefetch(tokens[i].sequence);
    }
  };
  for_each_sequence([&](SequenceId id) { parts_.cells.PrefetchHistory(id); });
  for_each_sequence([&](SequenceId id) { parts_.cells.PrefetchCell(id); });
}

// The roots of a tree must be at the end of their sequence.
Status CausalPass::CheckRoots(const Batch& batch) const {
  for (std::size_t i = 0; i < batch.parents.size(); ++i) {
    const Position length = parts_.cells.history(batch.sequences[i]).length();
    if (batch.parents[i] != Drafts::kNone || batch.positions[i] == length) continue;
    return Invalid(StrCat("draft ", i, " has no parent and is at position ", batch.positions[i],
                          "; must be at ", length, ", the end of sequence ",
                          Index(batch.sequences[i])));
  }
  return Status::Ok();
}

Status CausalPass::CheckPositions(Tokens tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto& [sequence, position, index] = tokens[i];
    if (i > 0 && tokens[i - 1].sequence == sequence && tokens[i - 1].position == position) {
      return Invalid(StrCat("tokens ", tokens[i - 1].index, " and ", index,
                            " of the batch are both at position ", position, " of sequence ",
                            Index(sequence), "; give parents if they are alternatives"));
    }
    if (parts_.cells.history(sequence).CellOf(position) != RunList::kNoCell) {
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
Status CausalPass::ReserveRuns(Tokens tokens) {
  bool moved = false;
  for (std::size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    const SequenceId sequence = tokens[begin].sequence;
    while (end < tokens.size() && tokens[end].sequence == sequence) ++end;
    const HistoryRun* const runs = parts_.cells.history(sequence).runs().data();
    if (!parts_.cells.Reserve(sequence, end - begin)) {
      if (moved) pass_.Rebind(parts_.cells);
      return OutOfMemory(StrCat("no memory for the runs of sequence ", Index(sequence)));
    }
    moved = moved || parts_.cells.history(sequence).runs().data() != runs;
  }
  if (moved) pass_.Rebind(parts_.cells);
  return Status::Ok();
}

Status CausalPass::CheckFreeCells(std::int32_t size, std::span<const Eviction> evictions) {
  const std::int32_t free = parts_.cells.cells_without_drafts();
  const bool fits =
      parts_.eviction.plan_fits() && parts_.cells.holds().empty() && !parts_.transactions.any();
  if (free >= size || fits) return Status::Ok();
  std::int32_t available = 0;
  Status status = parts_.pool->EnsureCapacity(size, evictions, nullptr, available);
  if (status.code() != StatusCode::kCacheFull) {
    return std::move(status).WithContext("materialising a snapshot for the batch");
  }
  return CacheFull(StrCat("the batch needs ", size, " cells; ", available, " of ",
                          parts_.cells.cells(), " are free (", parts_.sizes_text, ")"));
}

// A capture of a window holds the tokens that the pass evicts, so it is planned before the free
// cells are counted.
Status CausalPass::PlanCaptures(Tokens tokens) {
  for (std::size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    const SequenceId sequence = tokens[begin].sequence;
    while (end < tokens.size() && tokens[end].sequence == sequence) ++end;
    const Position length =
        std::max(parts_.cells.history(sequence).length(), tokens[end - 1].position + 1);
    KVCACHE_RETURN_IF_ERROR(
        parts_.captures.Plan(sequence, length, end - begin, parts_.eviction.PlannedFor(sequence)));
  }
  return Status::Ok();
}

Status CausalPass::PrepareCompute(const Batch& batch) {
  KVCACHE_RETURN_IF_ERROR(parts_.transactions.CheckWrites(batch));
  const Tokens tokens = pass_.Order(batch);
  PrefetchCells(tokens);
  KVCACHE_RETURN_IF_ERROR(batch.parents.empty() ? CheckPositions(tokens) : CheckRoots(batch));
  const std::span<const Eviction> evictions =
      parts_.eviction.Plan(parts_.cells, tokens, parts_.transactions);
  if (parts_.captures.any() && batch.parents.empty()) KVCACHE_RETURN_IF_ERROR(PlanCaptures(tokens));
  KVCACHE_RETURN_IF_ERROR(CheckFreeCells(prepared_size_, evictions));
  KVCACHE_RETURN_IF_ERROR(ReserveRuns(tokens));
  return pass_.PrepareDrafts(batch, parts_.cells);
}

Status CausalPass::Prepare(const Batch& batch, ForwardMode mode) {
  Unprepare();
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckBatch(batch, parts_.storage.options()));
  prepared_size_ = static_cast<std::int32_t>(batch.size());
  if (mode == ForwardMode::kReserve) {
    prepared_ = Prepared::kReserve;
    return Status::Ok();
  }
  Status status = PrepareCompute(batch);
  if (!status.ok()) {
    Unprepare();
    return status;
  }
  prepared_ = Prepared::kCompute;
  return Status::Ok();
}

void CausalPass::Begin() {
  assert(prepared_ != Prepared::kNothing);
  parts_.cells.DropDrafts();
  acceptance_.Clear();
  if (prepared_ == Prepared::kReserve) {
    pass_.BeginReserve(prepared_size_, parts_.cells);
  } else if (prepared_ == Prepared::kCompute) {
    parts_.eviction.Evict(parts_.cells);
    pass_.Begin(parts_.cells);
    parts_.captures.Fire();
  }
  prepared_ = Prepared::kNothing;
  masked_cells_ = {};
}

Status CausalPass::SetCausal(std::span<const std::int32_t> except) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  if (!pass_.active()) return Invalid("SetCausal outside a forward pass; call StartForward first");
  KVCACHE_RETURN_IF_ERROR(CheckQueries(except, pass_.drafts(), pass_.size()));
  pass_.SetNonCausal(except);
  masked_cells_ = {};
  return Status::Ok();
}

Status CausalPass::PlanCaptures(std::span<const std::int32_t> accepted) {
  for (std::size_t i = 0; i < accepted.size() && parts_.captures.any(); ++i) {
    const SequenceId sequence = pass_.drafts().sequence(accepted[i]);
    const Position length = pass_.drafts().position(accepted[i]) + 1;
    KVCACHE_RETURN_IF_ERROR(parts_.captures.Plan(sequence, length, pass_.size(), 0));
  }
  return Status::Ok();
}

Status CausalPass::MoveAccepted() {
  for (int layer = 0; layer < parts_.storage.layers().size(); ++layer) {
    const LayerKv* const storage = parts_.storage.layers().Find(layer);
    if (storage == nullptr) continue;
    const Status status = acceptance_.MoveBytes(parts_.storage.backend(), *storage);
    if (status.ok()) continue;
    // kInvalidArgument would promise that nothing has changed.
    const bool refusal = status.code() == StatusCode::kInvalidArgument;
    return Status(refusal ? StatusCode::kInternal : status.code(),
                  "moving the accepted drafts: " + status.message());
  }
  return Status::Ok();
}

// The bytes of an accepted path move to the first cells of its sequence's drafts, so that rejected
// drafts do not fragment the history. After the move the pass cannot be computed any more, so it
// ends. Its drafts stay until FinishAccept or the next change.
Status CausalPass::PrepareAccept(std::span<const std::int32_t> last) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  KVCACHE_RETURN_IF_ERROR(pass_.drafts().CheckChosen(last));
  Unprepare();
  acceptance_.Plan(pass_, parts_.cells, last);
  Status status = PlanCaptures(last);
  if (status.ok()) {
    pass_.End();
    status = MoveAccepted();
  }
  if (!status.ok()) End();
  return status;
}

void CausalPass::FinishAccept() {
  for (const auto& [sequence, position, cell] : acceptance_.accepted()) {
    parts_.cells.AcceptDraft(sequence, position, cell);
  }
  parts_.captures.Fire();
  End();
}

Status CausalPass::Put(const TensorView& k, const TensorView& v) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  if (!pass_.active()) return Invalid("Put outside a forward pass; call StartForward first");
  KVCACHE_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(k, v, pass_.size()));
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, parts_.storage.Ensure(shape));
  if (const std::int64_t block = parts_.storage.layers().releasable_cells();
      block > parts_.cells.free().block()) {
    KVCACHE_RETURN_IF_ERROR(
        Guarded("no memory for the blocks of cells", [&] { parts_.cells.free().SetBlock(block); }));
  }
  if (pass_.reserving()) return Status::Ok();
  return parts_.storage.backend().StoreKv(storage, k, v, pass_.cells());
}

Status CausalPass::EnsureMask() {
  if (masked_cells_.length > 0) return Status::Ok();
  const CellRun cells = VisibleCells(pass_.visibility(), parts_.storage.config().cell_padding);
  const std::int64_t rows = RoundUp(pass_.size(), parts_.storage.config().batch_padding);
  KVCACHE_RETURN_IF_ERROR(
      mask_.Build(pass_.visibility(), cells, rows, parts_.storage.config().mask_type));
  masked_cells_ = cells;
  return Status::Ok();
}

Result<DenseKv> CausalPass::Get() {
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv layer, parts_.storage.StorageForGet(pass_.active()));
  KVCACHE_RETURN_IF_ERROR(EnsureMask());
  return DenseViews(layer, masked_cells_, mask_.view());
}

}  // namespace kvcache
