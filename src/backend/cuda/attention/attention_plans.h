// The tasks of recent calls of attention, in memory of the device. Layers of a pass with the same kinds of cells see the
// same tokens, so one of them pays for the plan and its copy to the device, and the others find it here.
//
// Thread safety: one call at a time. Errors: those of the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/attention/attention_plan.h"
#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/attention_tasks.h"
#include "backend/cuda/device/device.h"
#include "kvcache/kv.h"
#include "kvcache/visibility.h"

namespace kvcache::cuda {

// All that a plan depends on. Its spans belong to the caller.
struct PlanCall {
  const LayerKv& layer;  // its shape, types and layout; not where its cells lie
  int group;             // heads / kv_heads
  UsableRows usable;
  const Visibility& visibility;
  int decode_blocks = 2;  // that a processor runs at once; depends on what is above
};

// The arrays of some of a call's tokens, at their addresses on the device.
struct PlacedRound {
  struct Tasks {
    const AttendTask* first = nullptr;
    std::int64_t count = 0;
  };
  std::array<Tasks, kTaskRows.size()> tasks{};  // by the kernel's rows
  const AttendToken* tokens = nullptr;
  const AttendRun* runs = nullptr;
  const std::int32_t* splits = nullptr;
  const MergeToken* merge_tokens = nullptr;
  const MergeStep* merge_steps = nullptr;
  std::int64_t merge_token_count = 0;
  std::int64_t partial_floats = 0;
};

// Rounds are launched one after another and use the same memory for partial results. Most calls have one.
struct PlacedPlan {
  std::vector<PlacedRound> rounds;
  std::int64_t partial_floats = 0;  // of the round with the most
};

class AttentionPlans {
 public:
  // A round of several tokens has at most max_partial_floats of partial results, unless one result for each of its rows
  // takes more.
  explicit AttentionPlans(std::int64_t max_partial_floats = kMaxPartialFloats)
      : max_partial_floats_(max_partial_floats) {}

  // Returns the plan for a call, made if necessary in place of the least recently used one. Valid for kernels that
  // are launched before the next call.
  Result<const PlacedPlan*> Find(Device& device, const PlanCall& call);

 private:
  // A copy of what a Visibility says.
  struct Seen {
    std::vector<Position> positions;
    std::vector<std::int32_t> history_of_query;
    std::vector<std::size_t> history_ends;  // of each history in `runs`
    std::vector<HistoryRun> runs;
    std::vector<std::uint8_t> bidirectional;
    std::int32_t window = 0;
    std::int32_t chunk = 0;

    bool Equals(const Visibility& visibility) const;
    void Assign(const Visibility& visibility);
  };

  struct Entry {
    bool holds_plan = false;
    std::int64_t last_use = 0;
    KvShape shape;
    DType k_type{};
    DType v_type{};
    KvLayout layout{};
    int group = 0;
    UsableRows usable{};
    Seen seen;
    PlacedPlan plan;
    std::unique_ptr<Buffer> arrays;
  };

  static bool Holds(const Entry& entry, const PlanCall& call);
  Status Make(Device& device, const PlanCall& call, Entry& entry);
  AttentionTasks MakeTasks(const PlanCall& call, const WantedTasks& wanted);
  // Cuts a call whose partial results take too much.
  std::vector<AttentionTasks> CutTasks(const PlanCall& call, const WantedTasks& wanted);
  Status Place(Device& device, std::span<const AttentionTasks> rounds, Entry& entry);

  // Models have up to two kinds of layers with two windows; a divided pass may use two batches in turn.
  std::int64_t max_partial_floats_;
  std::array<Entry, 4> entries_;
  std::int64_t uses_ = 0;
  cpu::AttentionPlan plan_;
  std::vector<std::byte> bytes_;
};

}  // namespace kvcache::cuda
