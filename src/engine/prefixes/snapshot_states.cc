#include "engine/prefixes/snapshot_states.h"

#include <utility>

#include "base/errors.h"
#include "engine/prefixes/hidden_states.h"

namespace kvcache {

Result<PrefixState> SnapshotStates::Add(std::unique_ptr<Snapshot> snapshot, SequenceId sequence) {
  return Guarded("no memory for a snapshot", [&]() -> Result<PrefixState> {
    Held held{.snapshot = std::move(snapshot), .last = {}};
    if (last_states_ != nullptr) {
      const auto last = last_states_->Last(sequence, held.snapshot->end());
      held.last.assign(last.begin(), last.end());
    }
    const auto bytes = static_cast<std::int64_t>(held.last.size() * sizeof(float));
    states_.emplace(last_ + 1, std::move(held));
    last_state_bytes_ += bytes;
    return PrefixState{++last_};
  });
}

Result<PrefixState> SnapshotStates::Take(SequenceId sequence, Position length) {
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, cache_.snapshots()->TakeSnapshot(sequence, 0, length));
  if (snapshot == nullptr) {
    return InvalidArgument("a snapshot of no tokens is no state");
  }
  return Add(std::move(snapshot), sequence);
}

const Snapshot* SnapshotStates::Find(PrefixState state) const {
  const auto found = states_.find(static_cast<std::uint64_t>(state));
  return found == states_.end() ? nullptr : found->second.snapshot.get();
}

std::span<const float> SnapshotStates::LastState(PrefixState state, Position length) const {
  const auto found = states_.find(static_cast<std::uint64_t>(state));
  if (found == states_.end() || found->second.snapshot->end() != length) return {};
  return found->second.last;
}

Status SnapshotStates::Restore(PrefixState state, SequenceId sequence, Position length) {
  const Snapshot* const snapshot = Find(state);
  if (snapshot == nullptr) return NotFound("the state is unknown");
  KVCACHE_RETURN_IF_ERROR(cache_.snapshots()->Restore(sequence, snapshot, length));
  if (last_states_ != nullptr) last_states_->Restored(sequence, length, LastState(state, length));
  return Status::Ok();
}

void SnapshotStates::DropLast(Held& held) {
  last_state_bytes_ -= static_cast<std::int64_t>(held.last.size() * sizeof(float));
  held.last = {};
}

void SnapshotStates::Drop(PrefixState state) {
  const auto found = states_.find(static_cast<std::uint64_t>(state));
  if (found == states_.end()) return;
  DropLast(found->second);
  states_.erase(found);
}

bool SnapshotStates::Truncate(PrefixState state, Position length) {
  const auto found = states_.find(static_cast<std::uint64_t>(state));
  if (found == states_.end() || length < 1) return false;
  Held& held = found->second;
  if (length >= held.snapshot->end()) return true;
  auto parts = cache_.snapshots()->SplitSnapshot(held.snapshot, length);
  if (!parts.ok()) return false;
  held.snapshot = std::move(parts->first);
  DropLast(held);
  return true;
}

}  // namespace kvcache
