#include "backend/cuda/attention/attention_plans.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/attention_split.h"

namespace kvcache::cuda {
namespace {

// Arrays behind one another, to be copied to the device at once.
class Arrays {
 public:
  explicit Arrays(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }

  // Returns the offset.
  template <class T>
  std::size_t Add(const std::vector<T>& values) {
    const std::span<const T> from(values);
    const std::size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + from.size_bytes());
    if (!from.empty()) std::memcpy(bytes_.data() + at, from.data(), from.size_bytes());
    return at;
  }

 private:
  std::vector<std::byte>& bytes_;
};

// Where a round's arrays are.
struct ArrayPlaces {
  std::array<std::size_t, kTaskRows.size()> tasks{};
  std::size_t tokens = 0;
  std::size_t runs = 0;
  std::size_t splits = 0;
  std::size_t merge_tokens = 0;
  std::size_t merge_steps = 0;
};

ArrayPlaces AddArrays(const AttentionTasks& tasks, Arrays& arrays) {
  ArrayPlaces places;
  for (std::size_t i = 0; i < places.tasks.size(); ++i)
    places.tasks[i] = arrays.Add(tasks.tasks[i]);
  places.tokens = arrays.Add(tasks.tokens);
  places.runs = arrays.Add(tasks.runs);
  places.splits = arrays.Add(tasks.splits);
  places.merge_tokens = arrays.Add(tasks.merge_tokens);
  places.merge_steps = arrays.Add(tasks.merge_steps);
  return places;
}

PlacedRound RoundAt(const std::byte* base, const ArrayPlaces& places, const AttentionTasks& tasks) {
  PlacedRound round;
  for (std::size_t i = 0; i < places.tasks.size(); ++i) {
    round.tasks[i] = {reinterpret_cast<const AttendTask*>(base + places.tasks[i]),
                      static_cast<std::int64_t>(tasks.tasks[i].size())};
  }
  round.tokens = reinterpret_cast<const AttendToken*>(base + places.tokens);
  round.runs = reinterpret_cast<const AttendRun*>(base + places.runs);
  round.splits = reinterpret_cast<const std::int32_t*>(base + places.splits);
  round.merge_tokens = reinterpret_cast<const MergeToken*>(base + places.merge_tokens);
  round.merge_steps = reinterpret_cast<const MergeStep*>(base + places.merge_steps);
  round.merge_token_count = static_cast<std::int64_t>(tasks.merge_tokens.size());
  round.partial_floats = tasks.partial_floats;
  return round;
}

// Some tokens of a call, in the order of the batch, and a bound of their partial results: one for each row of a
// history's tokens and each split that any of them sees.
class RoundOfTokens {
 public:
  explicit RoundOfTokens(const PlanCall& call)
      : visibility_(call.visibility),
        row_floats_(std::int64_t{call.group} * call.layer.shape.kv_heads *
                    cpu::PartialStride(call.layer.shape.v_dim)),
        histories_(call.visibility.histories.size()) {}

  void Add(std::size_t token) {
    floats_ = FloatsWith(token);
    History& history = HistoryOf(token);
    history.seen = cpu::Union(history.seen, Seen(token));
    ++history.tokens;
    in_batch_.push_back(static_cast<std::int32_t>(token));
    positions_.push_back(visibility_.positions[token]);
    history_of_query_.push_back(visibility_.history_of_query[token]);
    if (!visibility_.bidirectional.empty()) {
      bidirectional_.push_back(visibility_.bidirectional[token]);
    }
  }

  // The bound if that token were added.
  std::int64_t FloatsWith(std::size_t token) {
    const History& history = HistoryOf(token);
    const std::int64_t with =
        (history.tokens + 1) * SplitsIn(cpu::Union(history.seen, Seen(token)));
    return floats_ + (with - history.tokens * SplitsIn(history.seen)) * row_floats_;
  }

  Visibility Visible() const {
    Visibility visible = visibility_;
    visible.positions = positions_;
    visible.history_of_query = history_of_query_;
    visible.bidirectional = bidirectional_;
    return visible;
  }
  std::int32_t InBatch(std::int32_t token) const {
    return in_batch_[static_cast<std::size_t>(token)];
  }

 private:
  struct History {
    std::int64_t tokens = 0;
    PositionRange seen{kEndOfSequence, 0};
  };

  History& HistoryOf(std::size_t token) {
    return histories_[static_cast<std::size_t>(visibility_.history_of_query[token])];
  }
  PositionRange Seen(std::size_t token) const {
    const auto& runs =
        visibility_.histories[static_cast<std::size_t>(visibility_.history_of_query[token])];
    PositionRange seen = VisibleRange(visibility_, token);
    const std::int64_t end =
        runs.empty() ? 0 : std::int64_t{runs.back().position} + runs.back().length;
    seen.end = static_cast<Position>(std::min<std::int64_t>(seen.end, end));
    return seen;
  }
  static std::int64_t SplitsIn(PositionRange seen) {
    if (seen.end <= seen.begin) return 1;
    return (seen.end - 1) / cpu::kSplitPositions - seen.begin / cpu::kSplitPositions + 1;
  }

  const Visibility& visibility_;
  std::int64_t row_floats_;
  std::vector<History> histories_;
  std::int64_t floats_ = 0;
  std::vector<std::int32_t> in_batch_;
  std::vector<Position> positions_;
  std::vector<std::int32_t> history_of_query_;
  std::vector<std::uint8_t> bidirectional_;
};

}  // namespace

bool AttentionPlans::Seen::Equals(const Visibility& visibility) const {
  if (window != visibility.window || chunk != visibility.chunk ||
      history_ends.size() != visibility.histories.size() ||
      !std::ranges::equal(positions, visibility.positions) ||
      !std::ranges::equal(history_of_query, visibility.history_of_query) ||
      !std::ranges::equal(bidirectional, visibility.bidirectional)) {
    return false;
  }
  std::size_t begin = 0;
  for (std::size_t i = 0; i < history_ends.size(); ++i) {
    const std::span mine(runs.data() + begin, history_ends[i] - begin);
    if (!std::ranges::equal(mine, visibility.histories[i])) return false;
    begin = history_ends[i];
  }
  return true;
}

void AttentionPlans::Seen::Assign(const Visibility& visibility) {
  positions.assign(visibility.positions.begin(), visibility.positions.end());
  history_of_query.assign(visibility.history_of_query.begin(), visibility.history_of_query.end());
  bidirectional.assign(visibility.bidirectional.begin(), visibility.bidirectional.end());
  window = visibility.window;
  chunk = visibility.chunk;
  runs.clear();
  history_ends.clear();
  for (const std::span<const HistoryRun> history : visibility.histories) {
    runs.insert(runs.end(), history.begin(), history.end());
    history_ends.push_back(runs.size());
  }
}

bool AttentionPlans::Holds(const Entry& entry, const PlanCall& call) {
  return entry.holds_plan && entry.shape == call.layer.shape && entry.k_type == call.layer.k_type &&
         entry.v_type == call.layer.v_type && entry.layout == call.layer.layout &&
         entry.group == call.group && entry.usable == call.usable &&
         entry.seen.Equals(call.visibility);
}

Status AttentionPlans::Place(Device& device, std::span<const AttentionTasks> rounds, Entry& entry) {
  Arrays arrays(bytes_);
  std::vector<ArrayPlaces> places;
  for (const AttentionTasks& tasks : rounds) places.push_back(AddArrays(tasks, arrays));
  if (entry.arrays == nullptr || entry.arrays->size_bytes() < bytes_.size()) {
    // Histories grow, so the next plan needs a little more.
    const std::size_t size = bytes_.size() + bytes_.size() / 2;
    entry.arrays.reset();
    KVCACHE_ASSIGN_OR_RETURN(entry.arrays, device.Allocate(size));
  }
  KVCACHE_RETURN_IF_ERROR(device.CopyIn(bytes_, entry.arrays->data()));
  entry.plan.rounds.clear();
  entry.plan.partial_floats = 0;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    entry.plan.rounds.push_back(RoundAt(entry.arrays->data(), places[i], rounds[i]));
    entry.plan.partial_floats = std::max(entry.plan.partial_floats, rounds[i].partial_floats);
  }
  return Status::Ok();
}

AttentionTasks AttentionPlans::MakeTasks(const PlanCall& call, const WantedTasks& wanted) {
  const int threads = std::max(1, wanted.decode / static_cast<int>(cpu::kTasksPerThread));
  plan_.Build(call.layer, call.group, threads, call.visibility);
  return MakeAttentionTasks(plan_, call.layer, call.group, call.visibility, call.usable, wanted,
                            max_partial_floats_);
}

std::vector<AttentionTasks> AttentionPlans::CutTasks(const PlanCall& call,
                                                     const WantedTasks& wanted) {
  std::vector<AttentionTasks> rounds;
  const std::size_t count = call.visibility.positions.size();
  for (std::size_t first = 0; first < count;) {
    RoundOfTokens tokens(call);
    do {
      tokens.Add(first++);
    } while (first < count && tokens.FloatsWith(first) <= max_partial_floats_);
    rounds.push_back(MakeTasks(
        {call.layer, call.group, call.usable, tokens.Visible(), call.decode_blocks}, wanted));
    for (AttendToken& token : rounds.back().tokens) token.index = tokens.InBatch(token.index);
    for (MergeToken& token : rounds.back().merge_tokens) token.index = tokens.InBatch(token.index);
  }
  return rounds;
}

Status AttentionPlans::Make(Device& device, const PlanCall& call, Entry& entry) {
  const int processors = std::max(1, device.info().processors);
  const WantedTasks wanted{.prefill = 2 * processors, .decode = call.decode_blocks * processors};
  std::vector<AttentionTasks> rounds;
  rounds.push_back(MakeTasks(call, wanted));
  if (rounds.front().partial_floats > max_partial_floats_) rounds = CutTasks(call, wanted);
  KVCACHE_RETURN_IF_ERROR(Place(device, rounds, entry));
  entry.shape = call.layer.shape;
  entry.k_type = call.layer.k_type;
  entry.v_type = call.layer.v_type;
  entry.layout = call.layer.layout;
  entry.group = call.group;
  entry.usable = call.usable;
  entry.seen.Assign(call.visibility);
  entry.holds_plan = true;
  return Status::Ok();
}

Result<const PlacedPlan*> AttentionPlans::Find(Device& device, const PlanCall& call) {
  ++uses_;
  for (Entry& entry : entries_) {
    if (!Holds(entry, call)) continue;
    entry.last_use = uses_;
    return &entry.plan;
  }
  Entry& oldest = *std::ranges::min_element(entries_, {}, &Entry::last_use);
  oldest.holds_plan = false;  // until the new plan is there
  oldest.last_use = uses_;
  KVCACHE_RETURN_IF_ERROR(Make(device, call, oldest));
  return &oldest.plan;
}

}  // namespace kvcache::cuda
