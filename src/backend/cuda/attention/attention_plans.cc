#include "backend/cuda/attention/attention_plans.h"

#include <algorithm>
#include <cstring>
#include <span>

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

Status AttentionPlans::Place(Device& device, const AttentionTasks& tasks, Entry& entry) {
  Arrays arrays(bytes_);
  std::array<std::size_t, kTaskRows.size()> of_tasks{};
  for (std::size_t i = 0; i < of_tasks.size(); ++i) of_tasks[i] = arrays.Add(tasks.tasks[i]);
  const std::size_t tokens = arrays.Add(tasks.tokens);
  const std::size_t runs = arrays.Add(tasks.runs);
  const std::size_t splits = arrays.Add(tasks.splits);
  const std::size_t merge_tokens = arrays.Add(tasks.merge_tokens);
  const std::size_t merge_steps = arrays.Add(tasks.merge_steps);
  if (entry.arrays == nullptr || entry.arrays->size_bytes() < bytes_.size()) {
    // Histories grow, so the next plan needs a little more.
    const std::size_t size = bytes_.size() + bytes_.size() / 2;
    entry.arrays.reset();
    KVCACHE_ASSIGN_OR_RETURN(entry.arrays, device.Allocate(size));
  }
  std::byte* const base = entry.arrays->data();
  KVCACHE_RETURN_IF_ERROR(device.CopyIn(bytes_, base));
  PlacedPlan& plan = entry.plan;
  for (std::size_t i = 0; i < of_tasks.size(); ++i) {
    plan.tasks[i] = {reinterpret_cast<const AttendTask*>(base + of_tasks[i]),
                     static_cast<std::int64_t>(tasks.tasks[i].size())};
  }
  plan.tokens = reinterpret_cast<const AttendToken*>(base + tokens);
  plan.runs = reinterpret_cast<const AttendRun*>(base + runs);
  plan.splits = reinterpret_cast<const std::int32_t*>(base + splits);
  plan.merge_tokens = reinterpret_cast<const MergeToken*>(base + merge_tokens);
  plan.merge_steps = reinterpret_cast<const MergeStep*>(base + merge_steps);
  plan.merge_token_count = static_cast<std::int64_t>(tasks.merge_tokens.size());
  plan.partial_floats = tasks.partial_floats;
  return Status::Ok();
}

Status AttentionPlans::Make(Device& device, const PlanCall& call, Entry& entry) {
  const int processors = std::max(1, device.info().processors);
  const WantedTasks wanted{.prefill = 2 * processors, .decode = call.decode_blocks * processors};
  const int threads = std::max(1, wanted.decode / static_cast<int>(cpu::kTasksPerThread));
  plan_.Build(call.layer, call.group, threads, call.visibility);
  KVCACHE_RETURN_IF_ERROR(
      Place(device,
            MakeAttentionTasks(plan_, call.layer, call.group, call.visibility, call.usable, wanted),
            entry));
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

Result<PlacedPlan> AttentionPlans::Find(Device& device, const PlanCall& call) {
  ++uses_;
  for (Entry& entry : entries_) {
    if (!Holds(entry, call)) continue;
    entry.last_use = uses_;
    return entry.plan;
  }
  Entry& oldest = *std::ranges::min_element(entries_, {}, &Entry::last_use);
  oldest.holds_plan = false;  // until the new plan is there
  oldest.last_use = uses_;
  KVCACHE_RETURN_IF_ERROR(Make(device, call, oldest));
  return oldest.plan;
}

}  // namespace kvcache::cuda
