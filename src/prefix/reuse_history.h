// What was used, when and how often, also of prefixes that were evicted. Feeds ReturnRates.
//
// A request divides its keys into groups: tokens that as many requests have used. A group has one
// class and one time of use. Chunks of keys, known by their chained hash, point to the group of their
// last use. When a later request names a chunk, its group has returned, by the chunk's share.
//
// The history also knows what a cache of the same size would hold that evicts the least recently used chunk: the newest
// groups, up to that size. If few tokens return that such a cache has evicted, its order is hard to beat, and the rates
// are those of age alone.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "prefix/return_rates.h"
#include "prefix/use_class.h"

namespace kvcache::prefix {

// A number for each group, ascending with time.
enum class UseGroup : std::int64_t { kNone = -1 };

class ReuseHistory {
 public:
  static constexpr Position kChunk = 64;

  // Remembers at most `max_tokens` tokens.
  explicit ReuseHistory(std::int64_t max_tokens);

  // Returns how many keys were seen before, in whole chunks from the beginning, and counts the return of
  // their groups.
  Position Return(std::span<const PrefixKey> keys, std::uint64_t salt);
  // Returns how many keys were seen before and changes nothing.
  Position Find(std::span<const PrefixKey> keys, std::uint64_t salt) const;

  // Adds the use of all keys by a request. `use.uses` is not read. Returns the group of the chunks at each
  // length, as (begin, class), ascending; the first one begins at 0.
  struct GroupAt {
    Position begin = 0;
    int of_class = 0;
  };
  std::vector<GroupAt> Use(std::span<const PrefixKey> keys, std::uint64_t salt, PrefixUse use);

  // Lets the time of all ages pass: tokens of prompts that were begun.
  void Pass(Position tokens) { clock_ += tokens; }
  double clock() const { return clock_; }

  // Says that the cache is full with so many tokens.
  void SetHeld(std::int64_t tokens) { held_ = static_cast<double>(tokens); }
  const ReturnRates& rates() const { return rates_; }

  std::int64_t bytes() const;

 private:
  struct Group {
    int of_class = 0;
    double time = 0.0;
    double counted = 0.0;  // the clock up to which its waiting was counted
    double left = 0.0;     // tokens that have not returned
    double size = 0.0;     // tokens at first
  };
  struct Chunk {
    UseGroup group = UseGroup::kNone;
    double time = 0.0;  // of the last use
    std::int32_t uses = 0;
  };
  Group* Find(UseGroup group);
  void CountWait(Group& group);
  void CountReturn(UseGroup number, double tokens);
  // Says that tokens of a group have a later use, or are forgotten.
  void Leave(UseGroup number, double tokens);
  // Moves the oldest groups out of what the least recently used order would hold.
  void LimitRecent();
  void Refresh();
  void Forget();

  ReturnRates rates_;
  std::unordered_map<std::uint64_t, Chunk> chunks_;
  std::deque<std::uint64_t> order_;  // hashes by first use
  std::deque<Group> groups_;
  std::int64_t first_group_ = 0;
  std::int64_t max_chunks_;
  double clock_ = 0.0;
  int uses_since_refresh_ = 0;
  double held_ = std::numeric_limits<double>::infinity();
  std::int64_t first_recent_ = 0;  // the oldest group that the least recently used order would hold
  double recent_ = 0.0;            // tokens left in that group and later ones
  double recent_returns_ = 0.0;    // tokens that returned to them
  double late_returns_ = 0.0;      // tokens that returned to earlier groups
};

}  // namespace kvcache::prefix
