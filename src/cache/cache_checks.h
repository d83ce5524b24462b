// What every cache kind refuses, with the same words.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "cache/drafts.h"
#include "kvcache/cache.h"

namespace kvcache {

// Bounds that keep every count of cells within int32.
inline constexpr int kMaxPadding = 1 << 16;
inline constexpr std::int64_t kMaxCells =
    std::numeric_limits<std::int32_t>::max() - 2 * kCellTile * std::int64_t{kMaxPadding};

constexpr std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

inline Status Invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

// A cache's life: configured, then in use, then closed for good.
enum class CacheState : std::uint8_t { kNew, kReady, kClosed };
Status CheckReady(CacheState state);

Status CheckConfig(const CacheConfig& config);
Status CheckSizes(const CacheOptions& options);  // each at least one
// Types that the backend serves in this form.
Status CheckTypes(const KvBackend& backend, const CacheOptions& options, const CacheConfig& config);
Status CheckSequence(SequenceId id, const CacheOptions& options);
// Sizes, sequences, positions, items, and which drafts follow which.
Status CheckBatch(const Batch& batch, const CacheOptions& options);
// SetCausal's indices, in a pass of these drafts, if any.
Status CheckQueries(std::span<const std::int32_t> queries, const Drafts& drafts,
                    std::int64_t batch);
Status CheckRange(Position begin, Position end);
Status CheckPrefix(Position length);

// "max_sequences 2 x capacity 8", for messages.
std::string SizesText(const CacheOptions& options);

}  // namespace kvcache
