#include "kvcache/recurrent_cache.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <string>
#include <utility>

#include "base/strings.h"
#include "cache/recurrent/recurrent_cache_impl.h"

namespace kvcache {
namespace {

std::size_t Number(StateKind kind) {
  return static_cast<std::size_t>(kind);
}

// Returns the most states that open transactions keep of their passes.
int MostRoundStates(const CacheOptions& options) {
  return static_cast<int>(std::min<std::int64_t>(
      std::int64_t{options.max_batch} + 8LL * options.max_sequences, kMaxCells));
}

bool Sane(std::int64_t values) {
  return values >= 0 && values <= (std::int64_t{1} << 40);
}

}  // namespace

Status RecurrentCacheImpl::CheckRecurrentOptions(const CacheOptions& options) const {
  const RecurrentOptions& r = recurrent_;
  for (const int layer : r.layers) {
    if (layer < 0 || layer >= LayerStore::kMaxLayers) {
      return Invalid(
          StrCat("recurrent layer ", layer, " is not in [0, ", LayerStore::kMaxLayers, ")"));
    }
    if (std::count(r.layers.begin(), r.layers.end(), layer) != 1) {
      return Invalid(StrCat("layer ", layer, " is listed twice in RecurrentOptions::layers"));
    }
  }
  if (r.conv_dim < 0 || r.conv_channels < 0 || (r.conv_dim == 0) != (r.conv_channels == 0) ||
      !Sane(r.state_size)) {
    return Invalid(StrCat("conv_dim is ", r.conv_dim, ", conv_channels is ", r.conv_channels,
                          ", state_size is ", r.state_size,
                          "; must be at least 0, and the first two both 0 or neither"));
  }
  if (!r.layers.empty() && r.conv_dim == 0 && r.state_size == 0) {
    return Invalid(
        "recurrent layers without a state; set conv_dim and conv_channels, or state_size");
  }
  if (r.snapshot_states < 0 || r.snapshot_states > kMaxCells) {
    return Invalid(
        StrCat("snapshot_states is ", r.snapshot_states, "; must be in [0, ", kMaxCells, "]"));
  }
  if (!Sane(r.draft_inputs)) {
    return Invalid(StrCat("draft_inputs is ", r.draft_inputs, "; must be at least 0"));
  }
  if (r.max_states < 0 || r.max_states > options.max_sequences) {
    return Invalid(StrCat("max_states is ", r.max_states,
                          "; must be in [0, max_sequences], here [0, ", options.max_sequences,
                          "]"));
  }
  const auto& [count, spacing, minimum] = r.checkpoints;
  if (count < 0 || spacing < 1 || minimum < 0) {
    return Invalid(StrCat("checkpoints: count is ", count, ", spacing is ", spacing,
                          ", minimum is ", minimum, "; must be at least 0, 1 and 0"));
  }
  return Status::Ok();
}

Status RecurrentCacheImpl::SetCheckpoints(const CheckpointOptions& checkpoints) {
  if (options_.capacity > 0) return Invalid("SetCheckpoints after Init; call it before");
  recurrent_.checkpoints = checkpoints;
  return Status::Ok();
}

Status RecurrentCacheImpl::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckSizes(options));
  KVCACHE_RETURN_IF_ERROR(CheckRecurrentOptions(options));
  const int pass_sequences = std::min(options.max_sequences, options.max_batch);
  const StateTable::Options table{.sequences = options.max_sequences,
                                  .pass_sequences = pass_sequences,
                                  .max_states = recurrent_.max_states,
                                  .checkpoints = recurrent_.checkpoints,
                                  .snapshot_states = recurrent_.snapshot_states,
                                  .round_states = MostRoundStates(options)};
  if (StateTable::CellsFor(table) > kMaxCells) {
    return Invalid(StrCat("max_sequences ", options.max_sequences, " x checkpoints ",
                          recurrent_.checkpoints.count, " + snapshot_states ",
                          recurrent_.snapshot_states, " are more than ", kMaxCells, " states"));
  }
  const auto cells = static_cast<std::int32_t>(StateTable::CellsFor(table)) - 1;
  const auto layers = static_cast<int>(recurrent_.layers.size());
  KVCACHE_RETURN_IF_ERROR(attention_.CheckInit(backend, options));
  const int page = options.releases_memory ? 1 : pass_sequences;
  try {
    states_.Reset(table);
    conv_.Reset(backend, std::int64_t{recurrent_.conv_dim} * recurrent_.conv_channels, layers,
                cells, page);
    state_.Reset(backend, recurrent_.state_size, layers, cells, page);
    inputs_.Reset(backend, recurrent_.draft_inputs, layers);
    batch_.Reset(pass_sequences, options.max_sequences, options.max_batch);
    from_.reserve(pass_sequences);
    to_.reserve(pass_sequences);
    accepted_.reserve(pass_sequences);
    pool_ = std::make_shared<RecurrentSnapshotPool>(backend, states_, conv_, state_, layers);
    captures_.Reset(pool_.get(), options.max_sequences);
    rounds_.assign(options.max_sequences, {});
    cuts_.reserve(std::min(options.max_batch, recurrent_.snapshot_states));
    dropped_.reserve(2 * std::size_t{static_cast<unsigned>(pass_sequences)} + cuts_.capacity());
    path_.reserve(options.max_batch);
    for (auto& segments : segments_) segments.reserve(options.max_batch);
    updated_.resize(layers);
    asked_inputs_.resize(layers);
    prepared_.assign(options.max_sequences, kNotPrepared);
    for (int i = 0; i < layers; ++i) {
      const int layer = recurrent_.layers[i];
      index_of_layer_.resize(std::max<std::size_t>(index_of_layer_.size(), layer + 1), -1);
      index_of_layer_[layer] = i;
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the states of " + SizesText(options)};
  }
  options_ = options;
  most_round_states_ = MostRoundStates(options);
  return attention_.Init(backend, options);
}

void RecurrentCacheImpl::Close() {
  attention_.Close();
  captures_.Clear();
  if (pool_ != nullptr) pool_->Detach();
  pool_ = {};
  batch_ = {};
  active_ = false;
  from_ = {};
  to_ = {};
  cuts_ = {};
  accepted_ = {};
  inputs_ = {};
  conv_ = {};
  state_ = {};
  states_ = {};
}

// Checks that the batch continues at the states of its sequences.
Status RecurrentCacheImpl::CheckStates() const {
  for (const RecurrentBatch::Member& member : batch_.prepared_members()) {
    const SequenceId id = member.sequence;
    const StatePoint& live = states_.live(id);
    const Position length = attention_.cells().history(id).length();
    const std::string name = StrCat("sequence ", Index(id));
    if (!live.known()) {
      return {StatusCode::kUnsupported, StrCat(name, " has no recurrent state for its ", length,
                                               " tokens; PrepareRestore and Remove first")};
    }
    if (length > live.tokens) {
      return {StatusCode::kUnsupported,
              StrCat(name, " holds ", length, " tokens, its recurrent state ", live.tokens,
                     attention_.open_transactions().has(id)
                         ? "; the pass broke off: commit less or roll the transaction back"
                         : "; Remove the tokens of the pass that broke off")};
    }
    if (member.first < live.tokens) {
      return {StatusCode::kUnsupported,
              StrCat(name, " continues at position ", member.first, ", its recurrent state is at ",
                     live.tokens, "; must not be lower")};
    }
  }
  return Status::Ok();
}

Status RecurrentCacheImpl::CheckCuts() const {
  const std::size_t cuts = captures_.cuts().size();
  if (cuts <= static_cast<std::size_t>(recurrent_.snapshot_states)) return Status::Ok();
  return {StatusCode::kCacheFull,
          StrCat(cuts, " captures lie inside the batch; RecurrentOptions::snapshot_states is ",
                 recurrent_.snapshot_states, "; divide the batch, or cancel captures")};
}

Status RecurrentCacheImpl::PlanCaptures(const Batch& batch) {
  const std::span<const RecurrentBatch::Member> members = batch_.prepared_members();
  std::size_t column = 0;
  for (std::size_t i = 0; i < members.size() && captures_.any(); ++i) {
    const auto tokens = static_cast<std::size_t>(members[i].tokens);
    const SequenceId id = members[i].sequence;
    KVCACHE_RETURN_IF_ERROR(captures_.Plan(id, static_cast<std::int32_t>(i), states_.live(id),
                                           batch.positions.subspan(column, tokens)));
    column += tokens;
  }
  KVCACHE_RETURN_IF_ERROR(CheckCuts());
  batch_.Divide(captures_.cuts());
  return Status::Ok();
}

// Each state of the pass may need a new cell, and the snapshots may have to give as many. A commit may
// compute one more state for each sequence of a transaction, from the inputs of all tokens of the pass.
std::int64_t RecurrentCacheImpl::GrowthOf(std::span<const SequenceLength> more, int captures,
                                          int rounds) const {
  std::int64_t bytes = attention_.GrowthOf(more, captures, rounds);
  if (!options_.releases_memory) return bytes;
  if (rounds > 0) {
    std::int64_t tokens = 0;
    for (const SequenceLength& sequence : more) tokens += sequence.length;
    bytes += inputs_.GrowthOf(tokens);
  }
  const auto states = static_cast<std::int64_t>(more.size()) + captures + rounds;
  const std::int64_t each = conv_.state_bytes() + state_.state_bytes();
  return bytes + (states_.free_cells() < states ? 2 : 1) * states * each;
}

Status RecurrentCacheImpl::ReleaseFreeMemory() {
  if (!options_.releases_memory) return Status::Ok();
  EndPass();
  const auto in_use = [&](std::int32_t cell) {
    return cell < states_.cells().size() && states_.cells().ref_count(cell) > 0;
  };
  conv_.Release(in_use);
  state_.Release(in_use);
  if (!attention_.open_transactions().any()) {
    inputs_.Release();
    ++inputs_number_;  // no round has them
  }
  return attention_.ReleaseFreeMemory();
}

// Beginning the pass ends the one in progress, and drops the states before the last pass.
Status RecurrentCacheImpl::MakeRoomForPass() {
  const auto needed =
      static_cast<std::int32_t>(batch_.prepared_sequences().size() + captures_.cuts().size());
  if (states_.free_cells() >= needed) return Status::Ok();
  dropped_.assign(cuts_.begin(), cuts_.end());
  if (!committed_) dropped_.insert(dropped_.end(), to_.begin(), to_.end());
  for (const SequenceId id : batch_.prepared_sequences()) {
    if (states_.before(id).known()) dropped_.push_back(states_.before(id).cell);
  }
  return pool_->MakeRoom(needed, dropped_).WithContext("materialising a recurrent state");
}

Status RecurrentCacheImpl::PrepareForward(const Batch& batch, ForwardMode mode) {
  captures_.DropPlanned();
  if (!batch.parents.empty() && !recurrent_.layers.empty() && !recurrent_.replay_drafts) {
    return {StatusCode::kUnsupported,
            "a batch of drafts in recurrent layers; it needs RecurrentOptions::replay_drafts"};
  }
  KVCACHE_RETURN_IF_ERROR(attention_.PrepareForward(batch, mode));
  KVCACHE_RETURN_IF_ERROR(batch_.Prepare(batch));
  prepared_mode_ = mode;
  prepared_batch_ = batch;
  if (mode == ForwardMode::kReserve) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(CheckStates());
  const int most = recurrent_.max_states > 0 ? recurrent_.max_states : options_.max_sequences;
  const std::int32_t needed = states_.CountStates(batch_.prepared_sequences());
  if (needed > most) {
    return {StatusCode::kCacheFull,
            StrCat("the batch of ", batch_.prepared_sequences().size(), " sequences needs ", needed,
                   " recurrent states; max_states is ", most)};
  }
  KVCACHE_RETURN_IF_ERROR(CheckRoundStates());
  if (!batch.parents.empty()) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(PlanCaptures(batch));
  return MakeRoomForPass();
}

// Takes cells for the next states of `count` sequences, side by side where possible, and for the
// captures inside the pass.
void RecurrentCacheImpl::TakeCells(std::size_t count) {
  std::int32_t last = StateStore::kZeros;
  for (std::size_t i = 0; i < count; ++i) to_.push_back(last = states_.Take(last));
  for (std::size_t i = 0; i < captures_.cuts().size(); ++i) {
    cuts_.push_back(last = states_.Take(last));
  }
}

void RecurrentCacheImpl::BeginForward() {
  EndStates();
  attention_.BeginForward();
  batch_.Begin();
  mode_ = prepared_mode_;
  std::fill(updated_.begin(), updated_.end(), std::uint8_t{0});
  const int sorts = (conv_.values() > 0 ? 1 : 0) + (state_.values() > 0 ? 1 : 0);
  missing_ = static_cast<std::int32_t>(updated_.size()) * sorts;
  active_ = true;
  committed_ = mode_ == ForwardMode::kReserve;
  const bool drafts = HasDrafts();
  const bool reserves = mode_ == ForwardMode::kReserve;
  if (reserves) {
    needs_inputs_ = drafts;
    if (drafts) ++inputs_number_;  // the pass may replace the inputs of an earlier one
  } else {
    BeginRounds(prepared_batch_);
  }
  std::fill(asked_inputs_.begin(), asked_inputs_.end(), std::uint8_t{0});
  for (const SequenceId id : batch_.sequences()) {
    from_.push_back(reserves ? StateStore::kZeros : states_.live(id).cell);
    if (drafts) continue;  // a pass of drafts changes no sequence
    if (reserves) {
      to_.push_back(static_cast<std::int32_t>(to_.size()));
      continue;
    }
    prepared_[Index(id)] = kNotPrepared;
    states_.DropBefore(id);
  }
  if (drafts || reserves) return;
  TakeCells(batch_.sequences().size());
  captures_.Begin();
  if (missing_ == 0) Commit();
}

// Makes the states that the pass wrote those of its sequences.
void RecurrentCacheImpl::Commit() {
  if (committed_) return;
  committed_ = true;
  for (std::size_t i = 0; i < to_.size(); ++i) {
    const RecurrentBatch::Member& member = batch_.members()[i];
    states_.Commit(member.sequence, to_[i], member.last + 1);
    EndPassOfRound(member.sequence, member.first, HasInputs());
  }
  captures_.Finish(to_, cuts_);
}

void RecurrentCacheImpl::EndStates() {
  if (!committed_) {
    for (const std::int32_t cell : to_) states_.Drop(cell);
  }
  for (const std::int32_t cell : cuts_) states_.Drop(cell);
  captures_.Abandon();
  committed_ = true;
  active_ = false;
  from_.clear();
  to_.clear();
  cuts_.clear();
  accepted_.clear();
  batch_.End();
}

void RecurrentCacheImpl::EndPass() {
  attention_.EndPass();
  captures_.DropPlanned();
  EndStates();
}

Result<StateSegments> RecurrentCacheImpl::Resolve(int index, StateKind kind,
                                                  const SegmentPlan& plan) {
  StateStore& store = StoreOf(kind);
  const bool reserves = mode_ == ForwardMode::kReserve;
  const auto sequences = static_cast<std::int32_t>(batch_.members().size());
  if (reserves) KVCACHE_RETURN_IF_ERROR(store.Reserve(index, sequences).status());
  KVCACHE_RETURN_IF_ERROR(store.Ensure(index, from_));
  if (!reserves) KVCACHE_RETURN_IF_ERROR(store.Ensure(index, to_));
  KVCACHE_RETURN_IF_ERROR(store.Ensure(index, cuts_));
  std::byte* scratch = nullptr;
  const std::int32_t scratch_states = std::max(plan.scratch_states, reserves ? sequences : 0);
  if (scratch_states > 0) {
    KVCACHE_ASSIGN_OR_RETURN(const TensorView states, store.Scratch(scratch_states));
    scratch = states.data;
  }
  const auto address = [&](const StatePlace& place) {
    if (place.kind == StatePlace::Kind::kBefore) return store.At(index, from_[place.index]);
    if (place.kind == StatePlace::Kind::kAfter && !reserves) {
      return store.At(index, to_[place.index]);
    }
    if (place.kind == StatePlace::Kind::kCapture) return store.At(index, cuts_[place.index]);
    return scratch + place.index * BytesOf(DType::kF32, store.values());
  };
  std::vector<StateSegment>& segments = segments_[Number(kind)];
  segments.clear();
  for (const PlannedSegment& segment : plan.segments) {
    segments.push_back({.first = segment.first,
                        .tokens = segment.tokens,
                        .before = address(segment.before),
                        .after = address(segment.after)});
  }
  return StateSegments{.segments = segments, .strands = plan.strands, .values = store.values()};
}

Result<StateSegments> RecurrentCacheImpl::Segments(int layer, StateKind kind) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  if (StoreOf(kind).values() == 0) return Invalid("the cache has no states of this kind");
  return Resolve(index, kind, batch_.plan());
}

Status RecurrentCacheImpl::MarkWritten(int layer, StateKind kind) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  if (StoreOf(kind).values() == 0) return Invalid("the cache has no states of this kind");
  CountWritten(index, kind);
  return Status::Ok();
}

void RecurrentCacheImpl::CountWritten(int index, StateKind kind) {
  const auto bit = static_cast<std::uint8_t>(1 << Number(kind));
  if ((updated_[index] & bit) != 0) return;
  updated_[index] |= bit;
  if (--missing_ == 0 && !HasDrafts()) Commit();
}

Result<TensorView> RecurrentCacheImpl::DraftInputs(int layer) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  if (!NeedsInputs()) {
    return Invalid("DraftInputs in a pass without drafts, and of no transaction that needs them");
  }
  KVCACHE_RETURN_IF_ERROR(inputs_.Ensure(index, batch_.tokens()));
  asked_inputs_[index] = 1;
  return inputs_.View(index, batch_.tokens());
}

Result<int> RecurrentCacheImpl::IndexOf(int layer) const {
  if (!active_) return Invalid("a recurrent state outside a forward pass; call StartForward first");
  if (layer >= 0 && static_cast<std::size_t>(layer) < index_of_layer_.size() &&
      index_of_layer_[layer] >= 0) {
    return index_of_layer_[layer];
  }
  return Invalid(StrCat("layer ", layer, " is not in RecurrentOptions::layers"));
}

Status RecurrentCacheImpl::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  if (src == dst) {
    KVCACHE_RETURN_IF_ERROR(CheckPrefix(length));
    return Remove(src, length, kEndOfSequence);
  }
  KVCACHE_RETURN_IF_ERROR(attention_.CopyPrefix(src, dst, length));
  EndStates();
  states_.Share(src, dst, length);
  captures_.Cancel(dst);
  prepared_[Index(dst)] = kNotPrepared;
  return Status::Ok();
}

bool RecurrentCacheImpl::CanResume(SequenceId sequence, Position position) const {
  return attention_.CanResume(sequence, position) &&
         (position == 0 || states_.Newest(sequence, position) > 0);
}

// A window may be incomplete at a restore point, and complete at an older one.
Result<Position> RecurrentCacheImpl::PrepareRestore(SequenceId sequence, Position target) {
  KVCACHE_RETURN_IF_ERROR(attention_.PrepareRestore(sequence, 0).status());
  Position tokens = states_.Newest(sequence, target);
  while (tokens > 0 && !attention_.CanResume(sequence, tokens)) {
    tokens = states_.Newest(sequence, tokens - 1);
  }
  prepared_[Index(sequence)] = tokens;
  return tokens;
}

// Returns whether neither tokens nor state reach beyond `end`.
bool RecurrentCacheImpl::Truncates(SequenceId sequence, Position end) const {
  const StatePoint& live = states_.live(sequence);
  return end >= attention_.cells().history(sequence).length() &&
         (!live.known() || end >= live.tokens);
}

Status RecurrentCacheImpl::CheckRemove(SequenceId sequence, Position begin, Position end) const {
  KVCACHE_RETURN_IF_ERROR(attention_.CheckRemove(sequence, begin, end));
  const StatePoint& live = states_.live(sequence);
  const Position length =
      live.known() ? live.tokens : attention_.cells().history(sequence).length();
  if (!Truncates(sequence, end) || begin == 0 || begin >= length ||
      prepared_[Index(sequence)] == begin) {
    return Status::Ok();
  }
  return {StatusCode::kUnsupported,
          StrCat("sequence ", Index(sequence), " cannot go back from ", length, " tokens to ",
                 begin, "; call PrepareRestore first and use the length that it returns")};
}

Status RecurrentCacheImpl::Remove(SequenceId sequence, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));
  const bool truncates = Truncates(sequence, end);
  const Position length = attention_.cells().history(sequence).length();
  if (begin < end && end < length) captures_.Cancel(sequence);
  Status status = attention_.Remove(sequence, begin, end);
  EndStates();
  if (end >= length) captures_.Truncate(sequence, begin);
  if (truncates) {
    if (begin == 0 || prepared_[Index(sequence)] == begin) states_.GoBack(sequence, begin);
  } else if (begin < end) {
    states_.RemoveMiddle(sequence, begin, end);
  }
  prepared_[Index(sequence)] = kNotPrepared;
  return status;
}

Status RecurrentCacheImpl::EvictWindow(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(attention_.EvictWindow(sequence));
  EndStates();
  prepared_[Index(sequence)] = kNotPrepared;
  return Status::Ok();
}

Status RecurrentCacheImpl::Compact() {
  EndStates();
  return attention_.Compact();
}

std::unique_ptr<RecurrentCache> MakeRecurrentCache(RecurrentOptions options) {
  return std::make_unique<RecurrentCacheImpl>(std::move(options));
}

}  // namespace kvcache
