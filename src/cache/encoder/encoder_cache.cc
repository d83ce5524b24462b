#include "kvcache/encoder_cache.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <numeric>
#include <string>

#include "base/strings.h"
#include "cache/encoder/encoder_cache_impl.h"
#include "cache/pass/layer_views.h"

namespace kvcache {

Status EncoderCacheImpl::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckInit(backend, options));
  const CacheConfig config = CacheStorage::ConfigFor(backend, options);
  if (encoder_.max_tokens < 0) {
    return Invalid(StrCat("max_tokens is ", encoder_.max_tokens, "; must be at least 0"));
  }
  if (encoder_.max_tokens == 0) encoder_.max_tokens = options.capacity;
  const std::int64_t stride =
      RoundUp(encoder_.max_tokens, std::lcm(config.cell_padding, kCellTile));
  if (stride * options.max_sequences > kMaxCells) {
    return Invalid(StrCat("max_sequences ", options.max_sequences, " x max_tokens ",
                          encoder_.max_tokens, " are more than ", kMaxCells,
                          " cells; make one of them smaller"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckTypes(backend, options, config));
  const int members = std::min(options.max_sequences, options.max_batch);
  try {
    entries_.Reset(options.max_sequences);
    outputs_.assign(options.max_sequences, {});
    lengths_.assign(options.max_sequences, 0);
    captures_.Reset(options.max_sequences);
    accepted_.reserve(members);
    transactions_.Reset(options.max_sequences);
    pool_ = std::make_shared<EncoderSnapshotPool>(entries_, storage_,
                                                  static_cast<std::int32_t>(stride));
    member_of_.assign(options.max_sequences, kNone);
    members_.reserve(members);
    runs_.reserve(members);
    histories_.reserve(members);
    positions_.reserve(options.max_batch);
    drafts_.Reset(options.max_batch);
    history_of_query_.reserve(options.max_batch);
    bidirectional_.assign(options.max_batch, 1);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the metadata of " + SizesText(options)};
  }
  stride_ = static_cast<std::int32_t>(stride);
  storage_.Open(backend, options, stride * options.max_sequences);
  return Status::Ok();
}

void EncoderCacheImpl::Close() {
  EndPass();
  captures_.Clear();
  if (pool_ != nullptr) pool_->Detach();
  pool_ = {};
  storage_.Close();
  entries_ = {};
  outputs_ = {};
}

void EncoderCacheImpl::EndPass() {
  active_ = false;
  drafts_.Clear();
  prepared_.reset();
  visibility_ = {};
}

Status EncoderCacheImpl::PrepareForward(const Batch& batch, ForwardMode mode) {
  prepared_.reset();
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckBatch(batch, storage_.options()));
  if (mode == ForwardMode::kCompute) KVCACHE_RETURN_IF_ERROR(transactions_.CheckWrites(batch));
  prepared_ = batch;
  prepared_mode_ = mode;
  return Status::Ok();
}

void EncoderCacheImpl::AddMember(SequenceId sequence, Position position) {
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
void EncoderCacheImpl::NoteItems(const Batch& batch) {
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

void EncoderCacheImpl::BeginForward() {
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
  for (std::size_t i = 0; i < batch.size() && batch.parents.empty(); ++i) {
    if (prepared_mode_ == ForwardMode::kReserve) break;
    Position& length = lengths_[Index(batch.sequences[i])];
    length = std::max(length, batch.positions[i] + 1);
  }
  NoteItems(batch);
  drafts_.Clear();
  if (prepared_mode_ == ForwardMode::kCompute) drafts_.Set(batch);
  positions_.assign(batch.positions.begin(), batch.positions.end());
  active_ = true;
  mode_ = prepared_mode_;
  prepared_.reset();
  DescribeVisibility();
}

void EncoderCacheImpl::DescribeVisibility() {
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
void EncoderCacheImpl::Describe(std::size_t member) {
  const CellRun cells = mode_ == ForwardMode::kReserve
                            ? CellRun{0, encoder_.max_tokens}
                            : CellsOf(outputs_[Index(members_[member].sequence)]);
  runs_[member] = {0, cells.cell, cells.length};
  histories_[member] = std::span(&runs_[member], cells.length > 0 ? 1 : 0);
}

CellRun EncoderCacheImpl::CellsOf(const Output& output) const {
  if (output.entry == kNone) return {};
  return {output.entry * stride_, output.tokens};
}

// Changes nothing, because every query sees all of its sequence's output.
Status EncoderCacheImpl::SetCausal(std::span<const std::int32_t> except) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  if (!active_) return Invalid("SetCausal outside a forward pass; call StartForward first");
  return CheckQueries(except, drafts_, positions_.size());
}

// No output belongs to a draft, so nothing is kept or dropped.
Status EncoderCacheImpl::PrepareAccept(std::span<const std::int32_t> last) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(drafts_.CheckChosen(last));
  accepted_.clear();
  for (const std::int32_t i : last) {
    accepted_.emplace_back(drafts_.sequence(i), drafts_.position(i) + 1);
  }
  EndPass();
  return Status::Ok();
}

void EncoderCacheImpl::FinishAccept() {
  for (const auto& [sequence, length] : accepted_) lengths_[Index(sequence)] = length;
  accepted_.clear();
}

Status EncoderCacheImpl::SetSequence(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  if (!active_) return Invalid("SetSequence outside a forward pass; call StartForward first");
  const std::int32_t member = member_of_[Index(sequence)];
  if (member == kNone) {
    return Invalid(StrCat("sequence ", Index(sequence), " is not in the batch"));
  }
  current_ = static_cast<std::size_t>(member);
  return Status::Ok();
}

void EncoderCacheImpl::Drop(SequenceId sequence) {
  Output& output = outputs_[Index(sequence)];
  if (output.entry != kNone) entries_.Release(output.entry);
  output = {.first_gone = output.first_gone};
}

// The first Put of a pass replaces the sequence's output as a whole. If other sequences share the
// entry, they keep it, and the sequence takes another one.
Result<CellRun> EncoderCacheImpl::CellsForPut(Member& member, std::int32_t tokens) {
  Output& output = outputs_[Index(member.sequence)];
  if (member.put && output.tokens != tokens) {
    return Invalid(StrCat("the output has ", tokens, " tokens; must have ", output.tokens,
                          ", as in the pass's earlier layers"));
  }
  if (!member.put) {
    KVCACHE_RETURN_IF_ERROR(CaptureBeforePut(member));
    KVCACHE_RETURN_IF_ERROR(pool_->MakeRoom(output.entry, nullptr));
    if (output.entry != kNone && output.position < member.position) {
      output.first_gone = std::min(output.first_gone, output.position);
    }
    if (output.entry == kNone || entries_.ref_count(output.entry) > 1) {
      Drop(member.sequence);
      output.entry = entries_.Take(Index(member.sequence));
    }
    output.tokens = tokens;
    output.position = member.position;
    member.put = true;
  }
  return CellsOf(output);
}

Status EncoderCacheImpl::Put(const TensorView& k, const TensorView& v) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  if (!active_) return Invalid("Put outside a forward pass; call StartForward first");
  if (!drafts_.empty()) {
    return {StatusCode::kUnsupported,
            "Put of an encoder output in a pass of drafts; use a batch without parents"};
  }
  KVCACHE_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(k, v, k.dims[2]));
  if (k.dims[2] < 1 || k.dims[2] > encoder_.max_tokens) {
    return {StatusCode::kCacheFull,
            StrCat("the output has ", k.dims[2], " tokens; must have 1 to ", encoder_.max_tokens)};
  }
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv layer, storage_.Ensure(shape));
  if (mode_ == ForwardMode::kReserve) return Status::Ok();
  Member& member = members_[current_];
  if (transactions_.has(member.sequence)) {
    return {StatusCode::kUnsupported,
            StrCat("Put of an encoder output for sequence ", Index(member.sequence),
                   ", which is in a transaction; commit it or roll it back first")};
  }
  KVCACHE_ASSIGN_OR_RETURN(const CellRun cells,
                           CellsForPut(member, static_cast<std::int32_t>(k.dims[2])));
  Status status = storage_.backend().StoreKv(layer, k, v, std::span(&cells, 1));
  if (!status.ok()) {  // a half-written output is dropped
    Drop(member.sequence);
    member.put = false;
  }
  Describe(current_);
  return status;
}

Result<DenseKv> EncoderCacheImpl::Get() {
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv layer, storage_.StorageForGet(active_));
  if (histories_[current_].empty()) {
    return Status(StatusCode::kNotFound, StrCat("sequence ", Index(members_[current_].sequence),
                                                " has no encoder output; call Put for it first"));
  }
  return DenseViews(layer, {runs_[current_].cell, runs_[current_].length}, TensorView{});
}

bool EncoderCacheImpl::EncoderCached(SequenceId sequence) const {
  return storage_.ready() && CheckSequence(sequence, storage_.options()).ok() &&
         outputs_[Index(sequence)].entry != kNone;
}

Position EncoderCacheImpl::Length(SequenceId sequence) const {
  const bool known = storage_.ready() && CheckSequence(sequence, storage_.options()).ok();
  return known ? lengths_[Index(sequence)] : 0;
}

Status EncoderCacheImpl::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(src, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckSequence(dst, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckPrefix(length));
  KVCACHE_RETURN_IF_ERROR(transactions_.CheckChange(dst));
  EndPass();
  const Output& source = outputs_[Index(src)];
  const bool shares = source.entry != kNone && source.position < length;
  const Position first_gone = source.first_gone < length ? source.first_gone : kEndOfSequence;
  if (src != dst) {
    Drop(dst);
    if (shares) {
      entries_.Share(source.entry);
      outputs_[Index(dst)] = source;
    }
  } else if (!shares) {
    Drop(dst);
  }
  outputs_[Index(dst)].first_gone = first_gone;
  if (src == dst) {
    ChangeLength(dst, length);
  } else {
    lengths_[Index(dst)] = std::min(length, lengths_[Index(src)]);
    captures_.Cancel(dst);
  }
  return Status::Ok();
}

bool EncoderCacheImpl::CanResume(SequenceId sequence, Position position) const {
  if (!storage_.ready() || !CheckSequence(sequence, storage_.options()).ok() || position < 0) {
    return false;
  }
  const Output& output = outputs_[Index(sequence)];
  return position <= output.first_gone || (output.entry != kNone && position > output.position);
}

Result<Position> EncoderCacheImpl::PrepareRestore(SequenceId sequence, Position target) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  if (target <= 0) return 0;
  return CanResume(sequence, target) ? target : outputs_[Index(sequence)].first_gone;
}

Status EncoderCacheImpl::CheckRemove(SequenceId sequence, Position begin, Position end) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  return transactions_.CheckChange(sequence);
}

Status EncoderCacheImpl::Remove(SequenceId sequence, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));
  EndPass();
  if (end >= lengths_[Index(sequence)]) {
    ChangeLength(sequence, begin);
  } else if (begin < end) {
    lengths_[Index(sequence)] -= end - begin;
    captures_.Cancel(sequence);
  }
  Output& output = outputs_[Index(sequence)];
  if (output.first_gone != kEndOfSequence && output.first_gone >= begin) {
    if (end == kEndOfSequence) {
      output.first_gone = kEndOfSequence;
    } else {
      output.first_gone = std::max(begin, output.first_gone - (end - begin));
    }
  }
  if (output.entry == kNone || output.position < begin) return Status::Ok();
  if (output.position < end) {
    Drop(sequence);
  } else {
    output.position -= end - begin;
  }
  return Status::Ok();
}

Status EncoderCacheImpl::EvictWindow(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, 0, kEndOfSequence));
  EndPass();
  return Status::Ok();
}

Status EncoderCacheImpl::Compact() {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  EndPass();
  return Status::Ok();
}

std::unique_ptr<EncoderCache> MakeEncoderCache(const EncoderOptions& options) {
  return std::make_unique<EncoderCacheImpl>(options);
}

}  // namespace kvcache
