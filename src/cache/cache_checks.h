// Argument checks and error messages that all cache kinds share.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "base/errors.h"
#include "cache/pass/drafts.h"
#include "kvcache/cache.h"

namespace kvcache {

// Limits that keep every count of cells within int32.
inline constexpr int kMaxPadding = 1 << 16;
inline constexpr std::int64_t kMaxCells =
    std::numeric_limits<std::int32_t>::max() - 2 * kCellTile * std::int64_t{kMaxPadding};

constexpr std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Cold, so that checks that succeed have their instructions side by side.
[[gnu::cold]] inline Status Invalid(std::string message) {
  return InvalidArgument(std::move(message));
}

// The life cycle of a cache. A closed cache cannot be opened again.
enum class CacheState : std::uint8_t { kNew, kReady, kClosed };
Status CheckReady(CacheState state);

Status CheckConfig(const CacheConfig& config);
Status CheckSizes(const CacheOptions& options);  // each is at least one
// Checks that the backend serves the dtypes in the configured layout.
Status CheckTypes(const KvBackend& backend, const CacheOptions& options, const CacheConfig& config);
Status CheckSequence(SequenceId id, const CacheOptions& options);
// Checks sizes, sequences, positions, items and parents.
Status CheckBatch(const Batch& batch, const CacheOptions& options);
// Checks the indices given to SetCausal, in a pass of these drafts, if any.
Status CheckQueries(std::span<const std::int32_t> queries, const Drafts& drafts,
                    std::int64_t batch);
Status CheckRange(Position begin, Position end);
Status CheckPrefix(Position length);
// Checks that a sequence of `length` tokens has all positions of a snapshot's range.
Status CheckSnapshotRange(SequenceId id, Position begin, Position end, Position length);
// Checks the length to which Restore brings a sequence.
Status CheckTarget(SequenceId id, Position target, Position max);
// Checks the lengths of ScheduleCaptures for a sequence of `length` tokens that has `scheduled`
// captures.
Status CheckCaptures(SequenceId id, Position length, std::size_t scheduled, Position begin,
                     std::span<const Position> lengths);
Status CheckNeighbors(const Snapshot& parent, const Snapshot& child);
Status CheckInside(const Snapshot& snapshot, Position position);

// "max_sequences 2 x capacity 8", for messages.
std::string SizesText(const CacheOptions& options);

}  // namespace kvcache
