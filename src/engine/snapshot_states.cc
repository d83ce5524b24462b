#include "engine/snapshot_states.h"

#include <new>
#include <utility>

namespace kvcache {

Result<PrefixState> SnapshotStates::Add(std::unique_ptr<Snapshot> snapshot) {
  try {
    snapshots_.emplace(last_ + 1, std::move(snapshot));
    return PrefixState{++last_};
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for a snapshot");
  }
}

Result<PrefixState> SnapshotStates::Take(SequenceId sequence, Position length) {
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, cache_.TakeSnapshot(sequence, 0, length));
  if (snapshot == nullptr) {
    return Status(StatusCode::kInvalidArgument, "a snapshot of no tokens is no state");
  }
  return Add(std::move(snapshot));
}

const Snapshot* SnapshotStates::Find(PrefixState state) const {
  const auto found = snapshots_.find(static_cast<std::uint64_t>(state));
  return found == snapshots_.end() ? nullptr : found->second.get();
}

Status SnapshotStates::Restore(PrefixState state, SequenceId sequence, Position length) {
  const Snapshot* const snapshot = Find(state);
  if (snapshot == nullptr) return {StatusCode::kNotFound, "the state is unknown"};
  return cache_.Restore(sequence, snapshot, length);
}

void SnapshotStates::Drop(PrefixState state) {
  snapshots_.erase(static_cast<std::uint64_t>(state));
}

bool SnapshotStates::Truncate(PrefixState state, Position length) {
  const auto found = snapshots_.find(static_cast<std::uint64_t>(state));
  if (found == snapshots_.end() || length < 1) return false;
  if (length >= found->second->end()) return true;
  auto parts = cache_.SplitSnapshot(found->second, length);
  if (!parts.ok()) return false;
  found->second = std::move(parts->first);
  return true;
}

}  // namespace kvcache
