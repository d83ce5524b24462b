#include "support/internal/recurrent_reference.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <utility>

#include "tensor/float_conversion.h"

namespace kvcache::testing {
namespace {

constexpr std::array<int, 2> kRecurrentLayers = {1, 4};

std::array<std::int64_t, 2> DimsOf(const RecurrentReferenceOptions& options, int kind) {
  if (kind == 0) return {options.conv_dim, options.conv_channels};
  return {options.state_size / 4, 4};
}

std::vector<float> ValuesOf(std::uint32_t state, int layer, int kind, std::int64_t values) {
  if (state == 0) return std::vector<float>(values, 0.0f);
  return StateContent(state, layer, kind, values);
}

}  // namespace

std::string ToText(const RecurrentReferenceOptions& options) {
  std::ostringstream out;
  out << "recurrent: conv " << options.conv_dim << "x" << options.conv_channels << ", state "
      << options.state_size << ", states " << options.max_states << ", "
      << options.checkpoints.count << " checkpoints " << options.checkpoints.spacing
      << " apart from " << options.checkpoints.minimum << ", over " << ToText(options.attention);
  return out.str();
}

RecurrentReference::RecurrentReference(const ReferenceSetup& setup,
                                       const RecurrentReferenceOptions& recurrent)
    : setup_(setup),
      recurrent_(recurrent),
      attention_(setup, recurrent.attention),
      sequences_(setup.options.max_sequences) {}

std::unique_ptr<Cache> RecurrentReference::MakeCache(ReferenceBackend& backend) {
  RecurrentOptions options;
  options.layers.assign(kRecurrentLayers.begin(), kRecurrentLayers.end());
  options.conv_dim = recurrent_.conv_dim;
  options.conv_channels = recurrent_.conv_channels;
  options.state_size = recurrent_.state_size;
  options.max_states = recurrent_.max_states;
  options.checkpoints = recurrent_.checkpoints;
  options.attention = attention_.Options(backend);
  auto cache = std::make_unique<RecurrentCacheImpl>(std::move(options));
  cache_ = cache.get();
  attention_.LookAt(cache->attention());
  return cache;
}

std::int64_t RecurrentReference::values(int kind) const {
  const auto dims = DimsOf(recurrent_, kind);
  return dims[0] * dims[1];
}

std::vector<RecurrentReference::Member> RecurrentReference::MembersOf(
    const TestBatch& batch) const {
  std::vector<Member> members;
  for (const TestToken& token : batch.tokens) {
    if (members.empty() || members.back().sequence != token.sequence) {
      const std::optional<Point>& live = sequences_[token.sequence].live;
      members.push_back({token.sequence, live.value_or(Point{}), {}});
    }
    members.back().to = {token.content, token.position + 1};
  }
  return members;
}

StatusCode RecurrentReference::Prepare(const TestBatch& batch, ForwardMode mode) const {
  if (!batch.parents.empty()) return StatusCode::kUnsupported;
  const StatusCode code = attention_.Prepare(batch, mode);
  return code == StatusCode::kOk ? PrepareStates(batch, mode) : code;
}

StatusCode RecurrentReference::PrepareStates(const TestBatch& batch, ForwardMode mode) const {
  std::vector<std::vector<Position>> positions(sequences_.size());
  for (const TestToken& token : batch.tokens) positions[token.sequence].push_back(token.position);
  const std::vector<Member> members = MembersOf(batch);
  std::set<int> batch_sequences;
  std::set<std::uint32_t> states;  // states of sequences outside of the batch
  for (const Member& member : members) {
    const std::vector<Position>& own = positions[member.sequence];
    const bool in_pieces = !batch_sequences.insert(member.sequence).second;
    const bool ascending =
        std::adjacent_find(own.begin(), own.end(), std::greater_equal<>()) == own.end();
    if (in_pieces || !ascending || own.size() != positions[members.front().sequence].size()) {
      return StatusCode::kUnsupported;
    }
    const Sequence& sequence = sequences_[member.sequence];
    if (mode == ForwardMode::kReserve) continue;
    if (!sequence.live.has_value() || length(member.sequence) > sequence.live->tokens ||
        own.front() < sequence.live->tokens) {
      return StatusCode::kUnsupported;
    }
  }
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const std::optional<Point>& live = sequences_[s].live;
    const bool other = batch_sequences.count(static_cast<int>(s)) == 0;
    if (other && live.has_value() && live->state != 0) states.insert(live->state);
  }
  const std::size_t most = recurrent_.max_states > 0
                               ? static_cast<std::size_t>(recurrent_.max_states)
                               : sequences_.size();
  const bool full = mode == ForwardMode::kCompute && states.size() + members.size() > most;
  return full ? StatusCode::kCacheFull : StatusCode::kOk;
}

void RecurrentReference::Begin(const TestBatch& batch, ForwardMode mode) {
  EndPass();
  attention_.Begin(batch, mode);
  members_ = MembersOf(batch);
  in_pass_ = true;
  reserving_ = mode == ForwardMode::kReserve;
  if (reserving_) return;
  for (const Member& member : members_) {
    sequences_[member.sequence].before.reset();
    sequences_[member.sequence].prepared.reset();
  }
}

Status RecurrentReference::RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) {
  const bool states_first = batch.tokens.front().content % 2 == 0;
  if (!states_first) KVCACHE_RETURN_IF_ERROR(attention_.RunPass(cache, batch, step));
  RecurrentCache& states = *cache.Recurrent();
  bool all = true;
  for (std::size_t i = 0; i < kRecurrentLayers.size(); ++i) {
    all = all && PutsLayer(step, static_cast<int>(i));
    if (!PutsLayer(step, static_cast<int>(i))) continue;
    for (const int kind : {kConv, kState}) {
      if (values(kind) == 0) continue;
      KVCACHE_RETURN_IF_ERROR(reserving_ ? RunReserve(states, kRecurrentLayers[i], kind)
                                         : RunLayer(states, kRecurrentLayers[i], kind));
    }
  }
  if (all && !reserving_) Commit();
  if (states_first) KVCACHE_RETURN_IF_ERROR(attention_.RunPass(cache, batch, step));
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

void RecurrentReference::Commit() {
  const auto& [count, spacing, minimum] = recurrent_.checkpoints;
  for (const Member& member : members_) {
    Sequence& sequence = sequences_[member.sequence];
    sequence.before = sequence.live;
    sequence.live = member.to;
    std::vector<Point>& checkpoints = sequence.checkpoints;
    const bool far = checkpoints.empty() || member.to.tokens - checkpoints.back().tokens >= spacing;
    if (count == 0 || member.to.tokens - 1 < minimum || !far) continue;
    checkpoints.push_back(member.to);
    if (checkpoints.size() > static_cast<std::size_t>(count))
      checkpoints.erase(checkpoints.begin());
  }
  members_.clear();  // EndPass then does not treat the pass as broken off
}

void RecurrentReference::EndPass() {
  torn_ = torn_ || (in_pass_ && !reserving_ && !members_.empty());
  attention_.EndPass();
  members_.clear();
  in_pass_ = false;
}

std::vector<RecurrentReference::Point> RecurrentReference::PointsOf(int sequence) const {
  const Sequence& s = sequences_[sequence];
  std::vector<Point> points = s.checkpoints;
  if (s.live.has_value()) points.push_back(*s.live);
  if (s.before.has_value()) points.push_back(*s.before);
  return points;
}

StatusCode RecurrentReference::CheckCopy(int src, int dst, Position length) const {
  const StatusCode code = attention_.CheckCopy(src, dst, length);
  if (code != StatusCode::kOk || src != dst) return code;
  return CheckRemove(src, length, kEndOfSequence);
}

void RecurrentReference::Copy(int src, int dst, Position length) {
  if (src == dst) return Remove(src, length, kEndOfSequence);
  EndPass();
  attention_.Copy(src, dst, length);
  const Sequence& source = sequences_[src];
  Sequence target;
  if (length > 0) {
    const auto within = [length](const std::optional<Point>& point) {
      return point.has_value() && point->tokens <= length;
    };
    target.live = within(source.live) ? source.live : std::nullopt;
    target.before = within(source.before) ? source.before : std::nullopt;
    for (const Point& point : source.checkpoints) {
      if (point.tokens <= length) target.checkpoints.push_back(point);
    }
  }
  sequences_[dst] = std::move(target);
}

bool RecurrentReference::CanResume(int sequence, Position position) const {
  if (!attention_.CanResume(sequence, position)) return false;
  if (position == 0) return true;
  const std::vector<Point> points = PointsOf(sequence);
  return std::any_of(points.begin(), points.end(), [&](const Point& point) {
    return point.tokens > 0 && point.tokens <= position;
  });
}

bool RecurrentReference::CanGoBackTo(int sequence, Position length) const {
  const std::vector<Point> points = PointsOf(sequence);
  return attention_.CanResume(sequence, length) &&
         std::any_of(points.begin(), points.end(),
                     [&](const Point& point) { return point.tokens == length; });
}

void RecurrentReference::PrepareRestore(int sequence, Position length) {
  sequences_[sequence].prepared = length;
}

bool RecurrentReference::Truncates(int sequence, Position end) const {
  const std::optional<Point>& live = sequences_[sequence].live;
  return end >= length(sequence) && (!live.has_value() || end >= live->tokens);
}

StatusCode RecurrentReference::CheckRemove(int sequence, Position begin, Position end) const {
  const StatusCode code = attention_.CheckRemove(sequence, begin, end);
  if (code != StatusCode::kOk || begin == 0 || !Truncates(sequence, end)) return code;
  const Sequence& s = sequences_[sequence];
  const Position tokens = s.live.has_value() ? s.live->tokens : length(sequence);
  return begin >= tokens || s.prepared == begin ? StatusCode::kOk : StatusCode::kUnsupported;
}

void RecurrentReference::Remove(int sequence, Position begin, Position end) {
  const bool truncates = Truncates(sequence, end);
  EndPass();
  attention_.Remove(sequence, begin, end);
  Sequence& s = sequences_[sequence];
  if (truncates && begin == 0) {
    s = {};
  } else if (truncates && s.prepared == begin) {
    for (const Point& point : PointsOf(sequence)) {
      if (point.tokens == begin) s.live = point;
    }
    if (s.before.has_value() && s.before->tokens >= begin) s.before.reset();
    std::erase_if(s.checkpoints, [&](const Point& point) { return point.tokens > begin; });
    restored_ = true;
  } else if (!truncates && begin < end) {
    const auto move = [&](std::optional<Point> point) -> std::optional<Point> {
      if (!point.has_value() || point->tokens <= begin) return point;
      if (point->tokens <= end) return {};
      point->tokens -= end - begin;
      return point;
    };
    s.live = move(s.live);
    s.before = move(s.before);
    std::vector<Point> checkpoints;
    for (const Point& point : s.checkpoints) {
      if (const auto moved = move(point)) checkpoints.push_back(*moved);
    }
    s.checkpoints = std::move(checkpoints);
  }
  s.prepared.reset();
}

unsigned RecurrentReference::coverage() const {
  return attention_.coverage() | (restored_ ? kCoverRestored : 0u) | (torn_ ? kCoverTorn : 0u);
}

Difference RecurrentReference::Check() {
  if (seen_.has_value()) return seen_;
  if (Difference difference = attention_.Check()) return difference;
  for (int s = 0; s < setup_.options.max_sequences; ++s) {
    if (Difference difference = CheckPoints(s)) return difference;
  }
  return CheckTable();
}

Difference RecurrentReference::CheckPoints(int sequence) const {
  const StateTable& table = cache_->states();
  const SequenceId id{sequence};
  const auto same = [](const StatePoint& real, const std::optional<Point>& expected) {
    return real.known() == expected.has_value() &&
           (!real.known() || real.tokens == expected->tokens);
  };
  const Sequence& s = sequences_[sequence];
  const std::string name = " in sequence " + std::to_string(sequence);
  if (!same(table.live(id), s.live)) return "the state differs" + name;
  if (!same(table.before(id), s.before)) return "the state before the last pass differs" + name;
  const auto checkpoints = table.checkpoints(id);
  if (checkpoints.size() != s.checkpoints.size()) return "the number of checkpoints differs" + name;
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    if (!same(checkpoints[i], s.checkpoints[i])) return "a checkpoint differs" + name;
  }
  return {};
}

// Compares the reference counts with the references that exist; equal states share one cell.
Difference RecurrentReference::CheckTable() const {
  const StateTable& table = cache_->states();
  std::vector<std::int32_t> ref_counts(table.cells().size(), 0);
  ++ref_counts[StateStore::kZeros];
  for (int s = 0; s < setup_.options.max_sequences; ++s) {
    const SequenceId id{s};
    std::vector<StatePoint> points(table.checkpoints(id).begin(), table.checkpoints(id).end());
    points.push_back(table.live(id));
    points.push_back(table.before(id));
    for (const StatePoint& point : points) {
      if (point.known()) ++ref_counts[point.cell];
    }
  }
  if (!reserving_ && !members_.empty()) {
    for (const std::int32_t cell : cache_->Slots()) ++ref_counts[cell];
  }
  std::int32_t free = 0;
  for (std::int32_t cell = 0; cell < table.cells().size(); ++cell) {
    if (table.cells().ref_count(cell) != ref_counts[cell]) {
      return "state cell " + std::to_string(cell) + " has " +
             std::to_string(table.cells().ref_count(cell)) + " references, expected " +
             std::to_string(ref_counts[cell]);
    }
    free += ref_counts[cell] == 0;
  }
  return free == table.cells().free_cells() ? Difference()
                                            : "the number of free state cells differs";
}

}  // namespace kvcache::testing
