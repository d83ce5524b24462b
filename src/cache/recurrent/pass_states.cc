#include "cache/recurrent/pass_states.h"

#include <algorithm>

namespace kvcache {

void PassStates::Reset(int sequences, int captures, int max_batch) {
  before_.reserve(sequences);
  after_.reserve(sequences);
  cuts_.reserve(std::min(max_batch, captures));
  for (auto& segments : segments_) segments.reserve(max_batch);
}

void PassStates::Take(StateTable& states, std::size_t count, std::size_t cuts) {
  std::int32_t last = StateStore::kZeros;
  for (std::size_t i = 0; i < count; ++i) after_.push_back(last = states.Take(last));
  for (std::size_t i = 0; i < cuts; ++i) cuts_.push_back(last = states.Take(last));
  holds_after_ = true;
}

void PassStates::Drop(StateTable& states) {
  if (holds_after_) {
    for (const std::int32_t cell : after_) states.Drop(cell);
  }
  for (const std::int32_t cell : cuts_) states.Drop(cell);
  holds_after_ = false;
  before_.clear();
  after_.clear();
  cuts_.clear();
}

void PassStates::ListHeld(std::vector<std::int32_t>& cells) const {
  cells.assign(cuts_.begin(), cuts_.end());
  if (holds_after_) cells.insert(cells.end(), after_.begin(), after_.end());
}

Result<StateSegments> PassStates::Resolve(StateStore& store, int layer, StateKind kind,
                                          const SegmentPlan& plan, Mode mode) {
  const bool reserves = mode == Mode::kReserve;
  const auto sequences = static_cast<std::int32_t>(before_.size());
  if (reserves) KVCACHE_RETURN_IF_ERROR(store.Reserve(layer, sequences).status());
  KVCACHE_RETURN_IF_ERROR(store.Ensure(layer, before_));
  if (!reserves) KVCACHE_RETURN_IF_ERROR(store.Ensure(layer, after_));
  KVCACHE_RETURN_IF_ERROR(store.Ensure(layer, cuts_));
  std::byte* scratch = nullptr;
  const std::int32_t scratch_states = std::max(plan.scratch_states, reserves ? sequences : 0);
  if (scratch_states > 0) {
    KVCACHE_ASSIGN_OR_RETURN(const TensorView memory, store.Scratch(scratch_states));
    scratch = memory.data;
  }
  const auto address = [&](const StatePlace& place) {
    if (place.kind == StatePlace::Kind::kBefore) return store.At(layer, before_[place.index]);
    if (place.kind == StatePlace::Kind::kAfter && !reserves) {
      return store.At(layer, after_[place.index]);
    }
    if (place.kind == StatePlace::Kind::kCapture) return store.At(layer, cuts_[place.index]);
    return scratch + place.index * BytesOf(DType::kF32, store.values());
  };
  std::vector<StateSegment>& segments = segments_[static_cast<std::size_t>(kind)];
  segments.clear();
  for (const PlannedSegment& segment : plan.segments) {
    segments.push_back({.first = segment.first,
                        .tokens = segment.tokens,
                        .before = address(segment.before),
                        .after = address(segment.after)});
  }
  return StateSegments{.segments = segments, .strands = plan.strands, .values = store.values()};
}

}  // namespace kvcache
