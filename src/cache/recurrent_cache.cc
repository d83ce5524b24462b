#include "kvcache/recurrent_cache.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <string>
#include <utility>

#include "base/strings.h"
#include "cache/recurrent_cache_impl.h"

namespace kvcache {
namespace {

std::size_t Number(StateKind kind) {
  return static_cast<std::size_t>(kind);
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
                                  .checkpoints = recurrent_.checkpoints};
  if (StateTable::CellsFor(table) > kMaxCells) {
    return Invalid(StrCat("max_sequences ", options.max_sequences, " x checkpoints ",
                          recurrent_.checkpoints.count, " are more than ", kMaxCells, " states"));
  }
  const auto cells = static_cast<std::int32_t>(StateTable::CellsFor(table)) - 1;
  const auto layers = static_cast<int>(recurrent_.layers.size());
  KVCACHE_RETURN_IF_ERROR(attention_.CheckInit(backend, options));
  try {
    states_.Reset(table);
    conv_.Reset(backend, std::int64_t{recurrent_.conv_dim} * recurrent_.conv_channels, layers,
                cells, pass_sequences);
    state_.Reset(backend, recurrent_.state_size, layers, cells, pass_sequences);
    inputs_.Reset(backend, recurrent_.draft_inputs, layers);
    batch_.Reset(pass_sequences, options.max_sequences, options.max_batch);
    from_.reserve(pass_sequences);
    to_.reserve(pass_sequences);
    accepted_.reserve(pass_sequences);
    for (auto& segments : segments_) segments.reserve(options.max_batch);
    updated_.resize(layers);
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
  return attention_.Init(backend, options);
}

void RecurrentCacheImpl::Close() {
  attention_.Close();
  batch_ = {};
  active_ = false;
  from_ = {};
  to_ = {};
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
                     "; Remove the tokens of the pass that broke off")};
    }
    if (member.first < live.tokens) {
      return {StatusCode::kUnsupported,
              StrCat(name, " continues at position ", member.first, ", its recurrent state is at ",
                     live.tokens, "; must not be lower")};
    }
  }
  return Status::Ok();
}

Status RecurrentCacheImpl::PrepareForward(const Batch& batch, ForwardMode mode) {
  if (!batch.parents.empty() && !recurrent_.layers.empty() && !recurrent_.replay_drafts) {
    return {StatusCode::kUnsupported,
            "a batch of drafts in recurrent layers; it needs RecurrentOptions::replay_drafts"};
  }
  KVCACHE_RETURN_IF_ERROR(attention_.PrepareForward(batch, mode));
  KVCACHE_RETURN_IF_ERROR(batch_.Prepare(batch));
  prepared_mode_ = mode;
  if (mode == ForwardMode::kReserve) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(CheckStates());
  const int most = recurrent_.max_states > 0 ? recurrent_.max_states : options_.max_sequences;
  const std::int32_t needed = states_.CountStates(batch_.prepared_sequences());
  if (needed <= most) return Status::Ok();
  return {StatusCode::kCacheFull,
          StrCat("the batch of ", batch_.prepared_sequences().size(), " sequences needs ", needed,
                 " recurrent states; max_states is ", most)};
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
  std::int32_t last = StateStore::kZeros;
  for (const SequenceId id : batch_.sequences()) {
    const bool reserves = mode_ == ForwardMode::kReserve;
    from_.push_back(reserves ? StateStore::kZeros : states_.live(id).cell);
    if (drafts) continue;  // a pass of drafts changes no sequence
    if (reserves) {
      to_.push_back(static_cast<std::int32_t>(to_.size()));
      continue;
    }
    prepared_[Index(id)] = kNotPrepared;
    states_.DropBefore(id);
    last = states_.Take(last);
    to_.push_back(last);
  }
  if (missing_ == 0 && !drafts) Commit();
}

// Makes the states that the pass wrote those of its sequences.
void RecurrentCacheImpl::Commit() {
  if (committed_) return;
  committed_ = true;
  for (std::size_t i = 0; i < to_.size(); ++i) {
    const RecurrentBatch::Member& member = batch_.members()[i];
    states_.Commit(member.sequence, to_[i], member.last + 1);
  }
}

void RecurrentCacheImpl::EndStates() {
  if (!committed_) {
    for (const std::int32_t cell : to_) states_.Drop(cell);
  }
  committed_ = true;
  active_ = false;
  from_.clear();
  to_.clear();
  accepted_.clear();
  batch_.End();
}

void RecurrentCacheImpl::EndPass() {
  attention_.EndPass();
  EndStates();
}

// The states are computed before anything changes. They go to new cells, which no sequence has until
// FinishAccept. If the pass has not written every layer, the accepted tokens have no states, like
// those of a plain pass that broke off.
Status RecurrentCacheImpl::PrepareAccept(std::span<const std::int32_t> last) {
  Status status = attention_.PrepareAccept(last);
  if (status.code() == StatusCode::kInvalidArgument) return status;
  active_ = false;
  if (status.ok() && missing_ == 0) status = ReplayAccepted(last);
  if (!status.ok()) {
    EndPass();
    if (status.code() != StatusCode::kInvalidArgument) return status;
    // kInvalidArgument would promise that nothing has changed.
    return {StatusCode::kInternal, "replay_drafts: " + status.message()};
  }
  for (const std::int32_t token : last) {
    accepted_.push_back({batch_.drafts().sequence(token), batch_.drafts().position(token) + 1});
  }
  return status;
}

Status RecurrentCacheImpl::ReplayAccepted(std::span<const std::int32_t> last) {
  if (last.empty()) return Status::Ok();
  const SegmentPlan& plan = batch_.PlanAccepted(last);
  std::int32_t cell = StateStore::kZeros;
  for (std::size_t i = 0; i < last.size(); ++i) {
    cell = states_.Take(cell);
    to_.push_back(cell);
  }
  for (std::size_t i = 0; i < recurrent_.layers.size(); ++i) {
    const int index = static_cast<int>(i);
    KVCACHE_RETURN_IF_ERROR(inputs_.Ensure(index, batch_.tokens()));
    DraftReplay replay{.layer = recurrent_.layers[i],
                       .inputs = inputs_.View(index, batch_.tokens())};
    if (conv_.values() > 0) {
      KVCACHE_ASSIGN_OR_RETURN(replay.conv, Resolve(index, StateKind::kConvolution, plan));
    }
    if (state_.values() > 0) {
      KVCACHE_ASSIGN_OR_RETURN(replay.recurrent, Resolve(index, StateKind::kRecurrent, plan));
    }
    KVCACHE_RETURN_IF_ERROR(recurrent_.replay_drafts(replay));
  }
  return Status::Ok();
}

void RecurrentCacheImpl::FinishAccept() {
  attention_.FinishAccept();
  for (std::size_t i = 0; i < accepted_.size(); ++i) {
    const auto [sequence, tokens] = accepted_[i];
    prepared_[Index(sequence)] = kNotPrepared;
    states_.DropBefore(sequence);
    if (i < to_.size()) states_.Commit(sequence, to_[i], tokens);
  }
  committed_ = true;
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
  if (!HasDrafts()) return Invalid("DraftInputs in a pass without drafts");
  KVCACHE_RETURN_IF_ERROR(inputs_.Ensure(index, batch_.tokens()));
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
  prepared_[Index(dst)] = kNotPrepared;
  return Status::Ok();
}

bool RecurrentCacheImpl::CanResume(SequenceId sequence, Position position) const {
  return attention_.CanResume(sequence, position) &&
         (position == 0 || states_.Newest(sequence, position) > 0);
}

// A window may be incomplete at a restore point, and complete at an older one.
Result<Position> RecurrentCacheImpl::PrepareRestore(SequenceId sequence, Position target) {
  KVCACHE_RETURN_IF_ERROR(attention_.CheckRemove(sequence, 0, kEndOfSequence));
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
  Status status = attention_.Remove(sequence, begin, end);
  EndStates();
  if (truncates) {
    if (begin == 0 || prepared_[Index(sequence)] == begin) states_.GoBack(sequence, begin);
  } else if (begin < end) {
    states_.RemoveMiddle(sequence, begin, end);
  }
  prepared_[Index(sequence)] = kNotPrepared;
  return status;
}

Status RecurrentCacheImpl::Compact() {
  EndStates();
  return attention_.Compact();
}

std::unique_ptr<RecurrentCache> MakeRecurrentCache(RecurrentOptions options) {
  return std::make_unique<RecurrentCacheImpl>(std::move(options));
}

}  // namespace kvcache
