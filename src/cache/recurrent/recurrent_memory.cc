#include "cache/recurrent/recurrent_memory.h"

namespace kvcache {

std::int64_t RecurrentMemory::StateBytes() const {
  return parts_.conv.allocated_bytes() + parts_.state.allocated_bytes() +
         parts_.inputs.allocated_bytes();
}

std::int64_t RecurrentMemory::UsedBytes() const {
  return parts_.attention.memory()->UsedBytes() + StateBytes() + SnapshotBytes();
}

std::int64_t RecurrentMemory::ResidentBytes() const {
  const std::int64_t spare = parts_.pool == nullptr ? 0 : parts_.pool->host().memory.spare_bytes();
  return parts_.attention.memory()->ResidentBytes() + StateBytes() + SnapshotBytes() + spare;
}

// Each state of the pass may need a new cell, and the snapshots may have to give as many. A commit may
// compute one more state for each sequence of a transaction, from the inputs of all tokens of the pass.
std::int64_t RecurrentMemory::GrowthOf(std::span<const SequenceLength> more, int captures,
                                       int rounds) const {
  std::int64_t bytes = parts_.attention.memory()->GrowthOf(more, captures, rounds);
  if (!parts_.sizes.releases_memory) return bytes;
  if (rounds > 0) {
    std::int64_t tokens = 0;
    for (const SequenceLength& sequence : more) tokens += sequence.length;
    bytes += parts_.inputs.GrowthOf(tokens);
  }
  const auto states = static_cast<std::int64_t>(more.size()) + captures + rounds;
  const std::int64_t each = parts_.conv.state_bytes() + parts_.state.state_bytes();
  return bytes + (parts_.states.free_cells() < states ? 2 : 1) * states * each;
}

Status RecurrentMemory::ReleaseFreeMemory() {
  if (!parts_.sizes.releases_memory) return Status::Ok();
  pass_.End();
  const auto in_use = [&](std::int32_t cell) {
    return cell < parts_.states.cells().size() && parts_.states.cells().ref_count(cell) > 0;
  };
  parts_.conv.Release(in_use);
  parts_.state.Release(in_use);
  if (!parts_.attention.open_transactions().any()) {
    parts_.inputs.Release();
    rounds_.DropInputs();
  }
  return parts_.attention.memory()->ReleaseFreeMemory();
}

Status RecurrentMemory::Compact() {
  pass_.EndStates();
  return parts_.attention.memory()->Compact();
}

}  // namespace kvcache
