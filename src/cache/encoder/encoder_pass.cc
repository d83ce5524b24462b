#include "cache/encoder/encoder_pass.h"

#include <algorithm>
#include <cassert>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/pass/layer_views.h"

namespace kvcache {

void EncoderPass::Reset(const CacheOptions& sizes) {
  const int members = std::min(sizes.max_sequences, sizes.max_batch);
  accepted_.reserve(members);
  member_of_.assign(sizes.max_sequences, kNone);
  members_.reserve(members);
  runs_.reserve(members);
  histories_.reserve(members);
  positions_.reserve(sizes.max_batch);
  drafts_.Reset(sizes.max_batch);
  history_of_query_.reserve(sizes.max_batch);
  bidirectional_.assign(sizes.max_batch, 1);
}

void EncoderPass::End() {
  active_ = false;
  drafts_.Clear();
  prepared_.reset();
  visibility_ = {};
}

Status EncoderPass::Prepare(const Batch& batch, ForwardMode mode) {
  prepared_.reset();
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckBatch(batch, parts_.storage.options()));
  if (mode == ForwardMode::kCompute)
    KVCACHE_RETURN_IF_ERROR(parts_.transactions.CheckWrites(batch));
  prepared_ = batch;
  prepared_mode_ = mode;
  return Status::Ok();
}

void EncoderPass::AddMember(SequenceId sequence, Position position) {
  std::int32_t& index = member_of_[Index(sequence)];
  if (index == kNone) {
    index = static_cast<std::int32_t>(members_.size());
    members_.push_back({.sequence = sequence, .position = position});
  } else {
    members_[index].position = std::min(members_[index].position, position);
  }
}

// The output of a sequence belongs to its item at the highest position. The item with the highest
// batch index selects the sequence.
void EncoderPass::NoteItems(const Batch& batch) {
  std::int32_t newest = -1;
  for (const MultimodalItem& item : batch.items) {
    Member& member = members_[member_of_[Index(batch.sequences[item.index])]];
    const Position position = batch.positions[item.index];
    member.position = member.has_item ? std::max(member.position, position) : position;
    member.has_item = true;
    if (item.index < newest) continue;
    newest = item.index;
    current_ = static_cast<std::size_t>(&member - members_.data());
  }
}

void EncoderPass::NoteLengths(const Batch& batch) {
  if (prepared_mode_ == ForwardMode::kReserve || !batch.parents.empty()) return;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Position& length = parts_.lengths[Index(batch.sequences[i])];
    length = std::max(length, batch.positions[i] + 1);
  }
}

void EncoderPass::Begin() {
  assert(prepared_.has_value());
  if (!prepared_.has_value()) return;
  const Batch batch = *prepared_;
  for (const Member& member : members_) member_of_[Index(member.sequence)] = kNone;
  members_.clear();
  history_of_query_.clear();
  current_ = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    AddMember(batch.sequences[i], batch.positions[i]);
    history_of_query_.push_back(member_of_[Index(batch.sequences[i])]);
  }
  NoteLengths(batch);
  NoteItems(batch);
  drafts_.Clear();
  if (prepared_mode_ == ForwardMode::kCompute) drafts_.Set(batch);
  positions_.assign(batch.positions.begin(), batch.positions.end());
  active_ = true;
  mode_ = prepared_mode_;
  prepared_.reset();
  DescribeVisibility();
}

void EncoderPass::DescribeVisibility() {
  runs_.resize(members_.size());
  histories_.resize(members_.size());
  for (std::size_t i = 0; i < members_.size(); ++i) Describe(i);
  visibility_ = {};
  visibility_.positions = positions_;
  visibility_.history_of_query = history_of_query_;
  visibility_.histories = histories_;
  visibility_.bidirectional = std::span(bidirectional_).first(positions_.size());
}

// In a reserving pass every sequence has an output of the largest size.
void EncoderPass::Describe(std::size_t member) {
  const CellRun cells = mode_ == ForwardMode::kReserve
                            ? CellRun{0, parts_.options.max_tokens}
                            : parts_.CellsOf(parts_.outputs[Index(members_[member].sequence)]);
  runs_[member] = {0, cells.cell, cells.length};
  histories_[member] = std::span(&runs_[member], cells.length > 0 ? 1 : 0);
}

// Changes nothing, because every query sees all of its sequence's output.
Status EncoderPass::SetCausal(std::span<const std::int32_t> except) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  if (!active_) return Invalid("SetCausal outside a forward pass; call StartForward first");
  return CheckQueries(except, drafts_, positions_.size());
}

// No output belongs to a draft, so nothing is kept or dropped.
Status EncoderPass::PrepareAccept(std::span<const std::int32_t> last) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  KVCACHE_RETURN_IF_ERROR(drafts_.CheckChosen(last));
  accepted_.clear();
  for (const std::int32_t i : last) {
    accepted_.emplace_back(drafts_.sequence(i), drafts_.position(i) + 1);
  }
  End();
  return Status::Ok();
}

void EncoderPass::FinishAccept() {
  for (const auto& [sequence, length] : accepted_) parts_.lengths[Index(sequence)] = length;
  accepted_.clear();
}

Status EncoderPass::SetSequence(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(sequence));
  if (!active_) return Invalid("SetSequence outside a forward pass; call StartForward first");
  const std::int32_t member = member_of_[Index(sequence)];
  if (member == kNone) {
    return Invalid(StrCat("sequence ", Index(sequence), " is not in the batch"));
  }
  current_ = static_cast<std::size_t>(member);
  return Status::Ok();
}

// The output that a Put replaces may be what a scheduled capture consists of.
Status EncoderPass::CaptureBeforePut(const Member& member) {
  const EncoderOutput& output = parts_.outputs[Index(member.sequence)];
  auto& schedule = parts_.captures.of(member.sequence);
  if (output.entry == kNone || output.position >= member.position) return Status::Ok();
  for (std::size_t i = 0; i < schedule.lengths.size(); ++i) {
    const Position begin = schedule.BeginOf(i);
    const Position end = schedule.lengths[i];
    const bool has_output = output.position >= begin && output.position < end;
    if (!has_output || member.position < end || schedule.taken[i] != nullptr) continue;
    KVCACHE_ASSIGN_OR_RETURN(schedule.taken[i], parts_.pool->Share(output, begin, end));
  }
  return Status::Ok();
}

// If other sequences share the entry, they keep it, and the sequence takes another one.
Status EncoderPass::TakeEntry(Member& member, std::int32_t tokens) {
  EncoderOutput& output = parts_.outputs[Index(member.sequence)];
  KVCACHE_RETURN_IF_ERROR(CaptureBeforePut(member));
  KVCACHE_RETURN_IF_ERROR(parts_.pool->EnsureCapacity(output.entry, nullptr));
  if (output.entry != kNone && output.position < member.position) {
    output.first_gone = std::min(output.first_gone, output.position);
  }
  if (output.entry == kNone || parts_.entries.ref_count(output.entry) > 1) {
    parts_.Drop(member.sequence);
    output.entry = parts_.entries.Take(Index(member.sequence));
  }
  output.tokens = tokens;
  output.position = member.position;
  member.put = true;
  return Status::Ok();
}

// The first Put of a pass replaces the sequence's output as a whole.
Result<CellRun> EncoderPass::CellsForPut(Member& member, std::int32_t tokens) {
  const EncoderOutput& output = parts_.outputs[Index(member.sequence)];
  if (member.put && output.tokens != tokens) {
    return Invalid(StrCat("the output has ", tokens, " tokens; must have ", output.tokens,
                          ", as in the pass's earlier layers"));
  }
  if (!member.put) KVCACHE_RETURN_IF_ERROR(TakeEntry(member, tokens));
  return parts_.CellsOf(output);
}

Status EncoderPass::Put(const TensorView& k, const TensorView& v) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  if (!active_) return Invalid("Put outside a forward pass; call StartForward first");
  if (!drafts_.empty()) {
    return Unsupported("Put of an encoder output in a pass of drafts; use a batch without parents");
  }
  KVCACHE_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(k, v, k.dims[2]));
  if (k.dims[2] < 1 || k.dims[2] > parts_.options.max_tokens) {
    return CacheFull(StrCat("the output has ", k.dims[2], " tokens; must have 1 to ",
                            parts_.options.max_tokens));
  }
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv layer, parts_.storage.Ensure(shape));
  if (mode_ == ForwardMode::kReserve) return Status::Ok();
  Member& member = members_[current_];
  if (parts_.transactions.has(member.sequence)) {
    return Unsupported(StrCat("Put of an encoder output for sequence ", Index(member.sequence),
                              ", which is in a transaction; commit it or roll it back first"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const CellRun cells,
                           CellsForPut(member, static_cast<std::int32_t>(k.dims[2])));
  Status status = parts_.storage.backend().StoreKv(layer, k, v, std::span(&cells, 1));
  if (!status.ok()) {  // a half-written output is dropped
    parts_.Drop(member.sequence);
    member.put = false;
  }
  Describe(current_);
  return status;
}

Result<DenseKv> EncoderPass::Get() {
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv layer, parts_.storage.StorageForGet(active_));
  if (histories_[current_].empty()) {
    return NotFound(StrCat("sequence ", Index(members_[current_].sequence),
                           " has no encoder output; call Put for it first"));
  }
  return DenseViews(layer, {runs_[current_].cell, runs_[current_].length}, TensorView{});
}

}  // namespace kvcache
