// A model's calls of a pass, for the reference model of the recurrent cache.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "support/internal/recurrent_reference.h"
#include "tensor/float_conversion.h"

namespace kvcache::testing {
namespace {

std::array<std::int64_t, 2> DimsOf(const RecurrentReferenceOptions& options, int kind) {
  if (kind == 0) return {options.conv_dim, options.conv_channels};
  return {options.state_size / 4, 4};
}

std::vector<float> ValuesOf(std::uint32_t state, int layer, int kind, std::int64_t values) {
  if (state == 0) return std::vector<float>(values, 0.0f);
  return StateContent(state, layer, kind, values);
}

}  // namespace

std::int64_t RecurrentReference::values(int kind) const {
  const auto dims = DimsOf(recurrent_, kind);
  return dims[0] * dims[1];
}

void RecurrentReference::Begin(const TestBatch& batch, ForwardMode mode) {
  EndPass();
  attention_.Begin(batch, mode);
  members_ = MembersOf(batch);
  batch_ = batch;
  complete_ = false;
  in_pass_ = true;
  reserving_ = mode == ForwardMode::kReserve;
  if (!reserving_) BeginRounds();
  if (reserving_ && !batch.parents.empty()) ++inputs_;  // it may replace the inputs
  if (reserving_ || !batch.parents.empty()) return;     // drafts change no sequence
  for (const Member& member : members_) {
    sequences_[member.sequence].before.reset();
    sequences_[member.sequence].prepared.reset();
    const std::vector<TestToken> tokens = TokensOf(member.sequence, batch);
    divided_ = divided_ || CountInside(member.sequence, tokens) > 0;
    Reach(member.sequence, tokens);
  }
}

Status RecurrentReference::RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) {
  const bool states_first = batch.tokens.front().content % 2 == 0;
  if (!states_first) KVCACHE_RETURN_IF_ERROR(attention_.RunPass(cache, batch, step));
  RecurrentCache& states = *cache.Recurrent();
  CheckRoom();
  bool all = true;
  for (std::size_t i = 0; i < kRecurrentLayers.size(); ++i) {
    all = all && PutsLayer(step, static_cast<int>(i));
    if (!PutsLayer(step, static_cast<int>(i))) continue;
    for (const int kind : {kConv, kState}) {
      if (values(kind) == 0) continue;
      KVCACHE_RETURN_IF_ERROR(RunState(states, kRecurrentLayers[i], kind));
    }
  }
  complete_ = all;
  if (all && !reserving_ && batch.parents.empty()) Commit();
  if (states_first) KVCACHE_RETURN_IF_ERROR(attention_.RunPass(cache, batch, step));
  return Status::Ok();
}

// A pass outside of transactions leaves them the cells that are set aside for them.
void RecurrentReference::CheckRoom() {
  if (reserving_ || !batch_.parents.empty()) return;
  const std::int32_t free = cache_->inspect().parts.states.free_cells();
  if (free < 0) seen_ = "a pass took " + std::to_string(-free) + " cells of transactions";
}

// Uses segments, or views if the batch is even.
Status RecurrentReference::RunState(RecurrentCache& cache, int layer, int kind) {
  const std::int32_t tokens =
      even() ? static_cast<std::int32_t>(batch_.tokens.size() / members_.size()) : 0;
  if (batch_.parents.empty() && cache.TokensPerSequence() != tokens) {
    seen_ = "TokensPerSequence is " + std::to_string(cache.TokensPerSequence()) + ", expected " +
            std::to_string(tokens);
  }
  if (!reserving_ && cache.NeedsInputs() != NeedsInputs()) seen_ = "NeedsInputs differs";
  if (!reserving_ && NeedsInputs()) KVCACHE_RETURN_IF_ERROR(KeepInputs(cache, layer));
  if (!even()) CheckViewsRefused(cache, layer, kind);
  if (!even() || batch_.tokens.front().content / 6 % 2 == 0) return RunSegments(cache, layer, kind);
  return reserving_ ? RunReserve(cache, layer, kind) : RunLayer(cache, layer, kind);
}

bool RecurrentReference::even() const {
  if (!batch_.parents.empty() || divided_) return false;
  std::vector<int> tokens(sequences_.size());
  for (const TestToken& token : batch_.tokens) ++tokens[token.sequence];
  return std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    return tokens[member.sequence] == tokens[members_.front().sequence];
  });
}

void RecurrentReference::CheckViewsRefused(RecurrentCache& cache, int layer, int kind) {
  const auto dims = DimsOf(recurrent_, kind);
  const auto state = kind == kConv ? cache.ConvState(layer) : cache.RecurrentState(layer, dims);
  const auto next =
      kind == kConv ? cache.NextConvState(layer) : cache.NextRecurrentState(layer, dims);
  if (state.status().code() == StatusCode::kUnsupported &&
      next.status().code() == StatusCode::kUnsupported) {
    return;
  }
  seen_ = "a batch that is not even has a view of its states";
}

std::uint32_t RecurrentReference::StateBefore(std::int32_t index) const {
  const TestToken& token = batch_.tokens[index];
  if (replaying_ && (index == 0 || batch_.tokens[index - 1].sequence != token.sequence)) {
    const Round& round = rounds_.at(token.sequence);
    const std::size_t passes = round.passes.size();
    return passes > 1 ? round.passes[passes - 2].end.state
                      : round.saved.live.value_or(Point{}).state;
  }
  const bool drafts = !batch_.parents.empty();
  const bool continues = index > 0 && batch_.tokens[index - 1].sequence == token.sequence;
  const int parent = drafts ? batch_.parents[index] : continues ? index - 1 : -1;
  if (parent >= 0) return batch_.tokens[parent].content;
  return sequences_[token.sequence].live.value_or(Point{}).state;
}

// Runs the strands in reverse order: they must not depend on each other.
Status RecurrentReference::RunSegments(RecurrentCache& cache, int layer, int kind) {
  const StateKind named = kind == kConv ? StateKind::kConvolution : StateKind::kRecurrent;
  KVCACHE_ASSIGN_OR_RETURN(const StateSegments segments, cache.Segments(layer, named));
  CheckColumns(segments);
  if (segments.values != values(kind)) seen_ = "segments have another size of states";
  for (auto strand = static_cast<int>(segments.strands.size()) - 2; strand >= 0; --strand) {
    for (int i = segments.strands[strand]; i < segments.strands[strand + 1]; ++i) {
      RunSegment(segments.segments[i], layer, kind);
    }
  }
  return cache.MarkWritten(layer, named);
}

// Compares the state that the segment reads, and writes the one after its last token.
void RecurrentReference::RunSegment(const StateSegment& segment, int layer, int kind) {
  for (std::int32_t i = segment.first + 1; i < segment.first + segment.tokens; ++i) {
    if (StateBefore(i) != batch_.tokens[i - 1].content) {
      seen_ = "token " + std::to_string(i) + " does not follow the one before it in its segment";
    }
  }
  const std::vector<float> expected =
      ValuesOf(reserving_ ? 0 : StateBefore(segment.first), layer, kind, values(kind));
  const auto* before = reinterpret_cast<const float*>(segment.before);
  const bool known = !reserving_ || batch_.parents.empty() || batch_.parents[segment.first] < 0;
  if (known && !std::equal(expected.begin(), expected.end(), before)) {
    seen_ = "segment at " + std::to_string(segment.first) + " reads another state in layer " +
            std::to_string(layer);
  }
  const std::uint32_t last = batch_.tokens[segment.first + segment.tokens - 1].content;
  const std::vector<float> after = ValuesOf(last, layer, kind, values(kind));
  std::copy(after.begin(), after.end(), reinterpret_cast<float*>(segment.after));
}

// Checks that every token is in one segment, and that no two strands write the same memory.
void RecurrentReference::CheckColumns(const StateSegments& segments) {
  std::vector<int> times(batch_.tokens.size());
  for (const StateSegment& segment : segments.segments) {
    for (std::int32_t i = segment.first; i < segment.first + segment.tokens; ++i) ++times.at(i);
  }
  const bool each = std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
  if (!each) seen_ = "the segments are not a division of the batch";
  std::map<const std::byte*, std::size_t> written;  // the strand that writes a state
  for (std::size_t strand = 0; strand + 1 < segments.strands.size(); ++strand) {
    for (int i = segments.strands[strand]; i < segments.strands[strand + 1]; ++i) {
      const auto [found, first] = written.emplace(segments.segments[i].after, strand);
      if (!first && found->second != strand) seen_ = "two strands write the same state";
    }
  }
}

bool RecurrentReference::NeedsInputs() const {
  if (!batch_.parents.empty()) return true;
  std::map<int, int> tokens;
  for (const TestToken& token : batch_.tokens) {
    if (rounds_.count(token.sequence) != 0 && ++tokens[token.sequence] > 1) return true;
  }
  return false;
}

void RecurrentReference::BeginRounds() {
  if (NeedsInputs()) {
    ++inputs_;
    inputs_batch_ = batch_;
  }
  for (auto& [sequence, round] : rounds_) {
    const std::vector<TestToken> tokens = TokensOf(sequence, batch_);
    if (batch_.parents.empty() && !tokens.empty()) round.torn = tokens;
  }
}

Status RecurrentReference::KeepInputs(RecurrentCache& cache, int layer) {
  KVCACHE_ASSIGN_OR_RETURN(const TensorView inputs, cache.DraftInputs(layer));
  if (inputs.dims[0] != kDraftInputs ||
      inputs.dims[1] != static_cast<std::int64_t>(batch_.tokens.size())) {
    seen_ = "DraftInputs has another shape";
    return Status::Ok();
  }
  for (std::size_t i = 0; i < batch_.tokens.size(); ++i) {
    inputs.as<float>()[i * kDraftInputs] = static_cast<float>(batch_.tokens[i].content);
    inputs.as<float>()[i * kDraftInputs + 1] = static_cast<float>(layer);
  }
  return Status::Ok();
}

// Replays accepted drafts, or tokens that a transaction keeps of an earlier pass.
Status RecurrentReference::Replay(const DraftReplay& replay) {
  if (!replaying_ && inputs_batch_.parents.empty()) {
    replaying_ = true;
    reserving_ = false;  // a commit ends the pass in progress
    std::swap(batch_, inputs_batch_);
    Status status = Replay(replay);
    std::swap(batch_, inputs_batch_);
    replaying_ = false;
    return status;
  }
  for (std::size_t i = 0; i < batch_.tokens.size(); ++i) {
    const float* const kept = replay.inputs.as<float>() + i * kDraftInputs;
    if (kept[0] != static_cast<float>(batch_.tokens[i].content) ||
        kept[1] != static_cast<float>(replay.layer)) {
      seen_ = "the inputs of draft " + std::to_string(i) + " differ";
    }
  }
  if (replay.conv.segments.empty() != (values(kConv) == 0) ||
      replay.recurrent.segments.empty() != (values(kState) == 0)) {
    seen_ = "a replay lacks segments";
  }
  KVCACHE_RETURN_IF_ERROR(ReplaySegments(replay, replay.conv, kConv));
  return ReplaySegments(replay, replay.recurrent, kState);
}

// Writes each state through the backend, which may fail.
Status RecurrentReference::ReplaySegments(const DraftReplay& replay, const StateSegments& segments,
                                          int kind) {
  for (const StateSegment& segment : segments.segments) {
    std::vector<float> after(values(kind));
    const StateSegment computed{segment.first, segment.tokens, segment.before,
                                reinterpret_cast<std::byte*>(after.data())};
    RunSegment(computed, replay.layer, kind);
    const auto size = static_cast<std::int64_t>(after.size());
    KVCACHE_RETURN_IF_ERROR(
        backend_->CopyValues(TensorView::Dense(after.data(), DType::kF32, size),
                             TensorView::Dense(segment.after, DType::kF32, size)));
  }
  return Status::Ok();
}

void RecurrentReference::CompareStates(const TensorView& view, int layer, int kind) {
  const auto dims = DimsOf(recurrent_, kind);
  if (view.dims[0] != dims[0] || view.dims[1] != dims[1] ||
      view.dims[2] != static_cast<std::int64_t>(members_.size()) || view.dims[3] != 1) {
    seen_ = "the shape of a state differs";
    return;
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::uint32_t state = reserving_ ? 0 : members_[i].from.state;
    const std::vector<float> expected = ValuesOf(state, layer, kind, values(kind));
    const auto* row = reinterpret_cast<const float*>(view.data + static_cast<std::int64_t>(i) *
                                                                     view.stride_bytes[2]);
    if (!std::equal(expected.begin(), expected.end(), row)) {
      seen_ = "sequence " + std::to_string(members_[i].sequence) + " has another state in layer " +
              std::to_string(layer);
    }
  }
}

Status RecurrentReference::RunLayer(RecurrentCache& cache, int layer, int kind) {
  const auto dims = DimsOf(recurrent_, kind);
  KVCACHE_ASSIGN_OR_RETURN(const TensorView state, kind == kConv
                                                       ? cache.ConvState(layer)
                                                       : cache.RecurrentState(layer, dims));
  CompareStates(state, layer, kind);
  return Advance(cache, layer, kind);
}

Status RecurrentReference::RunReserve(RecurrentCache& cache, int layer, int kind) {
  const auto dims = DimsOf(recurrent_, kind);
  KVCACHE_ASSIGN_OR_RETURN(const TensorView state, kind == kConv
                                                       ? cache.ConvState(layer)
                                                       : cache.RecurrentState(layer, dims));
  CompareStates(state, layer, kind);
  KVCACHE_ASSIGN_OR_RETURN(const TensorView next, kind == kConv
                                                      ? cache.NextConvState(layer)
                                                      : cache.NextRecurrentState(layer, dims));
  std::fill_n(next.as<float>(), next.elements(), 7.0f);
  return kind == kConv ? cache.UpdateConvState(layer, next)
                       : cache.UpdateRecurrentState(layer, next);
}

// Updates the states in one of three ways: in the memory that Next returned, as rows of f32, or as
// rows of f16.
Status RecurrentReference::Advance(RecurrentCache& cache, int layer, int kind) {
  const auto dims = DimsOf(recurrent_, kind);
  const std::int64_t size = values(kind);
  const auto update = [&](const TensorView& view) {
    return kind == kConv ? cache.UpdateConvState(layer, view)
                         : cache.UpdateRecurrentState(layer, view);
  };
  const auto count = static_cast<std::int64_t>(members_.size());
  std::vector<float> rows;
  for (const Member& member : members_) {
    const std::vector<float> row = ValuesOf(member.to.state, layer, kind, size);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const std::uint32_t way = members_.front().to.state / 2 % 3;
  if (way == 0) {
    KVCACHE_ASSIGN_OR_RETURN(const TensorView next, kind == kConv
                                                        ? cache.NextConvState(layer)
                                                        : cache.NextRecurrentState(layer, dims));
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(rows.begin() + i * size, size,
                  reinterpret_cast<float*>(next.data + i * next.stride_bytes[2]));
    }
    return update(next);
  }
  if (way == 1) return update(TensorView::Dense(rows.data(), DType::kF32, size, count));
  std::vector<std::uint16_t> halves;
  for (const float value : rows) halves.push_back(F32ToF16(value));
  return update(TensorView::Dense(halves.data(), DType::kF16, dims[0], dims[1], count));
}

}  // namespace kvcache::testing
