#include "support/internal/recurrent_reference.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

namespace kvcache::testing {

std::string ToText(const RecurrentReferenceOptions& options) {
  std::ostringstream out;
  out << "recurrent: conv " << options.conv_dim << "x" << options.conv_channels << ", state "
      << options.state_size << ", states " << options.max_states << " and "
      << options.snapshot_states << ", " << options.checkpoints.count << " checkpoints "
      << options.checkpoints.spacing << " apart from " << options.checkpoints.minimum
      << (options.can_replay ? "" : ", no replay function") << ", over "
      << ToText(options.attention);
  return out.str();
}

RecurrentReference::RecurrentReference(const ReferenceSetup& setup,
                                       const RecurrentReferenceOptions& recurrent)
    : setup_(setup),
      recurrent_(recurrent),
      attention_(setup, recurrent.attention),
      sequences_(setup.options.max_sequences),
      captures_(setup.options.max_sequences) {}

std::unique_ptr<Cache> RecurrentReference::MakeCache(ReferenceBackend& backend) {
  RecurrentOptions options;
  options.layers.assign(kRecurrentLayers.begin(), kRecurrentLayers.end());
  options.conv_dim = recurrent_.conv_dim;
  options.conv_channels = recurrent_.conv_channels;
  options.state_size = recurrent_.state_size;
  options.max_states = recurrent_.max_states;
  options.snapshot_states = recurrent_.snapshot_states;
  options.checkpoints = recurrent_.checkpoints;
  options.attention = attention_.Options(backend);
  options.draft_inputs = kDraftInputs;
  if (recurrent_.can_replay) {
    options.replay_drafts = [this](const DraftReplay& replay) { return Replay(replay); };
  }
  backend_ = &backend;
  auto cache = std::make_unique<RecurrentCacheImpl>(std::move(options));
  cache_ = cache.get();
  attention_.LookAt(cache->inspect().parts.attention);
  return cache;
}

std::vector<RecurrentReference::Member> RecurrentReference::MembersOf(
    const TestBatch& batch) const {
  std::vector<Member> members;
  for (const TestToken& token : batch.tokens) {
    const auto same = [&](const Member& member) { return member.sequence == token.sequence; };
    auto found = std::find_if(members.begin(), members.end(), same);
    if (batch.parents.empty() && found != members.end() && !same(members.back())) {
      found = members.end();  // in two places of the batch
    }
    if (found == members.end()) {
      const std::optional<Point>& live = sequences_[token.sequence].live;
      found = members.insert(members.end(), {token.sequence, live.value_or(Point{}), {}});
    }
    found->to = {token.content, token.position + 1};
  }
  return members;
}

StatusCode RecurrentReference::Prepare(const TestBatch& batch, ForwardMode mode) const {
  if (!batch.parents.empty() && !recurrent_.can_replay) return StatusCode::kUnsupported;
  const StatusCode code = attention_.Prepare(batch, mode);
  return code == StatusCode::kOk ? PrepareStates(batch, mode) : code;
}

StatusCode RecurrentReference::PrepareStates(const TestBatch& batch, ForwardMode mode) const {
  std::vector<std::vector<Position>> positions(sequences_.size());
  for (const TestToken& token : batch.tokens) positions[token.sequence].push_back(token.position);
  const std::vector<Member> members = MembersOf(batch);
  std::set<int> batch_sequences;
  std::set<std::pair<std::uint32_t, std::uint32_t>> states;  // of sequences outside of the batch
  for (const Member& member : members) {
    const std::vector<Position>& own = positions[member.sequence];
    const bool in_pieces = !batch_sequences.insert(member.sequence).second;
    const bool ascending =
        std::adjacent_find(own.begin(), own.end(), std::greater_equal<>()) == own.end();
    if (batch.parents.empty() && (in_pieces || !ascending)) return StatusCode::kUnsupported;
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
    const bool zeros = live.has_value() && live->state == 0 && live->copy == 0;
    if (other && live.has_value() && !zeros) states.insert({live->state, live->copy});
  }
  const std::size_t max = recurrent_.max_states > 0
                              ? static_cast<std::size_t>(recurrent_.max_states)
                              : sequences_.size();
  if (mode == ForwardMode::kReserve) return StatusCode::kOk;
  int inside = 0;
  for (const Member& member : members) {
    if (batch.parents.empty()) {
      inside += CountInside(member.sequence, TokensOf(member.sequence, batch));
    }
  }
  std::size_t round_states = 0;
  for (const auto& [sequence, round] : rounds_) round_states += round.passes.size();
  std::size_t more = 0;
  for (const Member& member : members) more += rounds_.count(member.sequence);
  const bool full = states.size() + members.size() > max || inside > recurrent_.snapshot_states ||
                    (more > 0 && round_states + more >
                                     static_cast<std::size_t>(setup_.options.max_batch +
                                                              8 * setup_.options.max_sequences));
  return full ? StatusCode::kCacheFull : StatusCode::kOk;
}

StatusCode RecurrentReference::CheckAccept(const std::vector<int>& last) const {
  const StatusCode code = attention_.CheckAccept(last);
  int inside = 0;
  for (std::size_t i = 0; i < last.size() && code == StatusCode::kOk && complete_; ++i) {
    inside += CountInside(batch_.tokens[last[i]].sequence, PathTo(last[i]));
  }
  return inside > recurrent_.snapshot_states ? StatusCode::kCacheFull : code;
}

void RecurrentReference::Commit() {
  for (const Member& member : members_) {
    Advance(sequences_[member.sequence], member.to);
    const auto round = rounds_.find(member.sequence);
    if (round == rounds_.end()) continue;
    const bool drafts = !batch_.parents.empty();
    round->second.passes.push_back({round->second.torn, member.to, drafts ? -1 : inputs_});
    round->second.torn.clear();
  }
  members_.clear();  // EndPass then does not treat the pass as broken off
  for (const auto& [sequence, index, state] : reached_) {
    Captures& captures = captures_[sequence];
    captures.taken[index] = Point{state, captures.lengths[index]};
  }
  reached_.clear();
}

void RecurrentReference::Advance(Sequence& sequence, const Point& to) {
  const auto& [count, spacing, minimum] = recurrent_.checkpoints;
  sequence.before = sequence.live;
  sequence.live = to;
  std::vector<Point>& checkpoints = sequence.checkpoints;
  const bool far = checkpoints.empty() || to.tokens - checkpoints.back().tokens >= spacing;
  if (count == 0 || to.tokens - 1 < minimum || !far) return;
  checkpoints.push_back(to);
  if (checkpoints.size() > static_cast<std::size_t>(count)) checkpoints.erase(checkpoints.begin());
}

// If the pass broke off, the accepted tokens have no state, as in a pass without drafts.
void RecurrentReference::Accept(const std::vector<int>& last) {
  attention_.Accept(last);
  members_.clear();
  for (const int index : last) {
    const TestToken& token = batch_.tokens[index];
    Reach(token.sequence, PathTo(index));
    Sequence& sequence = sequences_[token.sequence];
    sequence.prepared.reset();
    sequence.before.reset();
    if (rounds_.count(token.sequence) != 0) rounds_[token.sequence].torn = PathTo(index);
    if (complete_) members_.push_back({token.sequence, {}, {token.content, token.position + 1}});
    torn_ = torn_ || !complete_;
  }
  if (complete_) Commit();
  EndPass();
}

void RecurrentReference::EndPass() {
  torn_ = torn_ || (in_pass_ && !reserving_ && batch_.parents.empty() && !members_.empty());
  attention_.EndPass();
  members_.clear();
  reached_.clear();
  divided_ = false;
  in_pass_ = false;
}

void RecurrentReference::Evict(int sequence) {
  EndPass();
  attention_.Evict(sequence);
  sequences_[sequence].prepared.reset();
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
  captures_[dst] = {};
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
  if (end >= length(sequence)) {
    TruncateCaptures(sequence, begin);
  } else if (begin < end) {
    captures_[sequence] = {};
  }
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
  const StateTable& table = cache_->inspect().parts.states;
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
  const StateTable& table = cache_->inspect().parts.states;
  std::vector<std::int32_t> ref_counts(table.cells().size(), 0);
  ++ref_counts[StateStore::kZeros];
  for (int s = 0; s < setup_.options.max_sequences; ++s) {
    const SequenceId id{s};
    std::vector<StatePoint> points(table.checkpoints(id).begin(), table.checkpoints(id).end());
    points.push_back(table.live(id));
    points.push_back(table.before(id));
    const StateTable::Points& saved = table.saved(id);
    points.insert(points.end(), saved.checkpoints.begin(), saved.checkpoints.end());
    points.push_back(saved.live);
    points.push_back(saved.before);
    for (const RecurrentRound::PassEnd& pass : cache_->inspect().rounds.of(id).passes) {
      points.push_back(pass.state);
    }
    for (const StatePoint& point : points) {
      if (point.known()) ++ref_counts[point.cell];
    }
  }
  if (!reserving_ && !members_.empty()) {
    for (const std::int32_t cell : cache_->Slots()) ++ref_counts[cell];
  }
  for (const std::int32_t cell : cache_->inspect().pass.states().cuts()) ++ref_counts[cell];
  const RecurrentSnapshot* snapshot = cache_->inspect().parts.pool->oldest();
  for (; snapshot != nullptr; snapshot = snapshot->newer) ++ref_counts[snapshot->cell()];
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
